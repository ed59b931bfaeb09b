"""Figures for Prometheus: a page ``/metrics`` on a port of its own, computed when it is scraped.

Every exporter has a registry of its own, so that several can live in one process.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import grpc
from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rlax_plugin.errors import ConfigError, WorkerError

_PREFIX = "rlax_"
_CLOSE_S = 2.0  # for the thread that answers scrapes to end; it looks twice a second
_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

Family = CounterMetricFamily | GaugeMetricFamily
Figures = Mapping[str, float]


def metric_name(name: str) -> str:
    """``stage/name`` as Prometheus wants names: ``rlax_stage_name``."""
    return _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name)


def _family(name: str, documentation: str, labels: Sequence[str] = ()) -> Family:
    """An empty family; a name that ends in ``_total`` makes it a counter."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    return kind(metric_name(name), documentation, labels=labels)


class Exporter:
    """Serves ``/metrics`` on a thread of its own until it is closed.

    Args:
      host: address to bind.
      port: 0 takes any free one.
      key: what sets the port, for the error's message.
      registry: what is served; its collectors are called on the serving thread.

    Attributes:
      url: what Prometheus is to scrape.

    Raises:
      ConfigError: the port is taken.
    """

    def __init__(self, host: str, port: int, key: str, registry: CollectorRegistry):
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            reason = f"cannot be used on {host}: {error.strerror}; 0 means any free port"
            raise ConfigError(key, port, reason) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLOSE_S)


def worker_families(workers: Mapping[str, Figures]) -> Iterable[Family]:
    """``rlax_worker_<figure>{worker=NAME}``; figures that end in ``_total`` are counters."""
    families: dict[str, Family] = {}
    for worker, figures in workers.items():
        for name, value in figures.items():
            if name not in families:
                families[name] = _family(f"worker/{name}", f"{name} of a worker", ["worker"])
            families[name].add_metric([worker], value)
    return families.values()


class WorkerMetrics(Collector):
    """What a worker exports: the figures of its engine, its weight version, its calls.

    Args:
      name: the worker's.
      figures: the engine's ``health`` and more; called on the exporter's thread.

    Attributes:
      registry: for an ``Exporter``.
      interceptor: counts and times calls; give it to the worker's server.
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

    Exports ``rlax_calls_total{method,code}`` and ``rlax_call_seconds{method}``; a call takes until
    its last message.
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

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler.unary_stream:
            return handler
        method = str(getattr(handler_call_details, "method", "")).rpartition("/")[2]

        async def timed(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            began_s, code = time.perf_counter(), "CANCELLED"
            try:
                async for reply in handler.unary_stream(request, context):
                    yield reply
                code = "OK"
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException:
                code = _name_of(context.code())
                raise
            finally:
                self._calls.labels(method, code).inc()
                self._seconds.labels(method).observe(time.perf_counter() - began_s)

        return grpc.unary_stream_rpc_method_handler(
            timed, handler.request_deserializer, handler.response_serializer
        )


def _name_of(code: Any) -> str:
    """``INTERNAL`` and so on; gRPC keeps the number only. UNKNOWN: an error without a status."""
    names = {c.value[0]: c.name for c in grpc.StatusCode}
    return names.get(getattr(code, "value", (code,))[0] or -1, "UNKNOWN")


class RunMetrics(Collector):
    """What the trainer exports: its newest step's metrics, its fleet, and what went wrong.

    Args:
      counts: name -> figure of the run; those that end in ``_total`` are counters.
      workers: name -> figures. Both are called on the exporter's thread.

    Attributes:
      registry: for an ``Exporter``.
    """

    def __init__(
        self, *, counts: Callable[[], Figures], workers: Callable[[], Mapping[str, Figures]]
    ):
        self._counts, self._workers = counts, workers
        self._newest: tuple[int, dict[str, float]] = (0, {})
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def step(self, step: int, metrics: Figures) -> None:
        """Takes a finished step's metrics, named ``stage/name``, or more of the newest step's.

        Those of an evaluation stay until the next one: few scrapes would see a single step's.
        """
        newest, before = self._newest
        kept = {k: v for k, v in before.items() if step == newest or k.startswith("evaluation")}
        self._newest = (step, kept | dict(metrics))

    def collect(self) -> Iterable[Family]:
        step, metrics = self._newest
        documented = {name: f"{name} of the newest RL step" for name in metrics}
        documented |= {"step": "the newest finished RL step"}
        for name, value in {**metrics, "step": step, **self._counts()}.items():
            family = _family(name, documented.get(name, name.replace("_", " ")))
            family.add_metric([], value)
            yield family
        yield from worker_families(self._workers())
