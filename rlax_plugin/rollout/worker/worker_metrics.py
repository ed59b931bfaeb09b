"""Metrics of a worker for Prometheus: its engine's figures, its weight version, its calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.registry import Collector

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.rpc.transport.prometheus import Family, Figures, worker_families

_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class WorkerMetrics(Collector):
    """The exported metrics of a worker: its engine's figures, its weight version, its calls.

    Args:
      name: name of the worker.
      figures: returns the engine's ``health`` and other figures; called on the exporter's thread.

    Attributes:
      registry: the registry, for an ``Exporter``.
      interceptor: counts and times calls; pass it to the worker's server.
    """

    def __init__(self, name: str, figures: Callable[[], Figures]):
        self._name, self._figures = name, figures
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.interceptor = CallMetrics(self.registry)

    def collect(self) -> Iterable[Family]:
        try:
            figures = {"up": 1.0, **self._figures()}
        except WorkerError:  # its engine has died, which is worth knowing
            figures = {"up": 0.0}
        return worker_families({self._name: figures})


class CallMetrics(grpc.aio.ServerInterceptor):
    """Counts and times the calls that are answered by a stream: ``Generate`` and ``Decode``.

    It exports ``rlax_calls_total{method,code}`` and ``rlax_call_seconds{method}``; the time of a
    call ends with its last message. Requests over HTTP are ``ended`` with path and status.
    """

    def __init__(self, registry: CollectorRegistry):
        self._calls = Counter(
            "rlax_calls", "calls that have ended", ["method", "code"], registry=registry
        )
        self._seconds = Histogram(
            "rlax_call_seconds",
            "from a call's start to its end",
            ["method"],
            registry=registry,
            buckets=_BUCKETS_S,
        )

    def ended(self, method: str, code: str, took_s: float) -> None:
        """Counts a call; any thread."""
        self._calls.labels(method, code).inc()
        self._seconds.labels(method).observe(took_s)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        answer = handler.stream_stream or handler.unary_stream
        method = str(getattr(handler_call_details, "method", "")).rpartition("/")[2]

        async def timed(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            began_s, code = time.perf_counter(), "CANCELLED"
            try:
                async for reply in answer(request, context):
                    yield reply
                code = "OK"
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException:
                code = _name_of(context.code())
                raise
            finally:
                self.ended(method, code, time.perf_counter() - began_s)

        make = grpc.unary_stream_rpc_method_handler
        if handler.request_streaming:
            make = grpc.stream_stream_rpc_method_handler
        return make(timed, handler.request_deserializer, handler.response_serializer)


def _name_of(code: Any) -> str:
    """Returns a status name such as ``INTERNAL``; UNKNOWN for an error without a status.

    gRPC keeps only the number.
    """
    names = {c.value[0]: c.name for c in grpc.StatusCode}
    return names.get(getattr(code, "value", (code,))[0] or -1, "UNKNOWN")
