"""A reader's or trainer's side of the parameter server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable
from typing import TypeVar

import grpc

from rlax_plugin.errors import DeadlineError, WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.channels import CHANNEL_OPTIONS, describe
from rlax_plugin.types import WeightVersion
from rlax_plugin.weights.messages import version_from_proto, version_to_proto

log = logging.getLogger("rlax.parameter_server")

T = TypeVar("T")

_WATCH_S = 300.0  # one Watch stream; it is opened again when this is over
_BACKOFF_S = (0.1, 2.0)  # first and longest pause before a broken Watch is opened again
_PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)


class ParameterServerClient:
    """Talks to one parameter server; make and use it on one event loop.

    Args:
      address: host:port.
      rpc_s: deadline of every call but the watch's stream.
      holder: names this reader in messages; host and process id by default.
    """

    def __init__(self, address: str, rpc_s: float, *, holder: str = ""):
        self._address, self._rpc_s = address, rpc_s
        self._holder = holder or f"{socket.gethostname()}:{os.getpid()}"
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = rpc.ParameterServerStub(self._channel)
        self._closed = asyncio.Event()

    async def latest(self) -> WeightVersion | None:
        """The newest version; None before the first.

        Raises:
          WeightsError: the server cannot be reached.
          DeadlineError: it does not answer.
        """
        reply = await self._call(self._stub.Latest(pb.LatestRequest(), timeout=self._rpc_s))
        return version_from_proto(reply.version) if reply.any else None

    async def writing(self, path: str) -> None:
        """Nothing: a server elsewhere learns of a version when it is published."""

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Announces a version whose bytes are already in place; see ``ParameterServer.publish``.

        Raises:
          WeightsError: rejected (the same or a newer one is there), or the server is unreachable.
          DeadlineError: it does not answer.
        """
        request = pb.PublishRequest(version=version_to_proto(version), restart=restart)
        await self._call(self._stub.Publish(request, timeout=self._rpc_s))

    @contextlib.asynccontextmanager
    async def acquire(self, version: int | None = None) -> AsyncIterator[WeightVersion]:
        """Holds a version (None: the newest) inside ``async with``, renewing the lease.

        Raises:
          WeightsError: no such version any more, or the server is unreachable.
          DeadlineError: it does not answer.
        """
        request = pb.AcquireRequest(version=-1 if version is None else version, holder=self._holder)
        reply = await self._call(self._stub.Acquire(request, timeout=self._rpc_s))
        renewal = asyncio.ensure_future(self._renew(reply.lease, reply.lease_s))
        try:
            yield version_from_proto(reply.version)
        finally:
            renewal.cancel()
            try:
                await self._stub.Release(pb.ReleaseRequest(lease=reply.lease), timeout=self._rpc_s)
            except grpc.aio.AioRpcError as error:
                why = describe(error, (self._rpc_s, "rlax.deadlines.rpc_s"))
                log.info("a lease was left to expire: %s", why)

    async def watch(self, after: int = -1) -> AsyncIterator[WeightVersion]:
        """Versions newer than ``after``, in order, until ``close``.

        After a restart of the trainer the next one may have a lower number, or the same one again.
        Whoever takes them slowly gets the newest next and none between. A broken connection is
        opened again, with a growing pause.
        """
        newest: asyncio.Queue[WeightVersion] = asyncio.Queue(1)
        reader = asyncio.ensure_future(self._read_versions(after, newest))
        closed = asyncio.ensure_future(self._closed.wait())
        taken = asyncio.ensure_future(newest.get())
        try:
            while True:
                await asyncio.wait({reader, closed, taken}, return_when=asyncio.FIRST_COMPLETED)
                if closed.done():
                    return
                if taken.done():
                    version = taken.result()
                    yield version
                    taken = asyncio.ensure_future(newest.get())
                else:
                    reader.result()  # raises: the reader ends for no other reason
        finally:
            for task in (reader, closed, taken):
                task.cancel()

    async def close(self) -> None:
        """Ends watches and the connection."""
        self._closed.set()
        await self._channel.close()

    async def _read_versions(self, after: int, newest: asyncio.Queue[WeightVersion]) -> None:
        pause_s = _BACKOFF_S[0]
        while not self._closed.is_set():
            try:
                # Not wait_for_ready: a refused connection is reported, and the pause grows.
                async for message in self._stub.Watch(
                    pb.WatchRequest(after=after), timeout=_WATCH_S
                ):
                    pause_s = _BACKOFF_S[0]
                    version = version_from_proto(message)
                    after = version.version
                    if newest.full():
                        newest.get_nowait()
                    newest.put_nowait(version)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                if error.code() not in _PASSING:
                    raise WeightsError(
                        f"watching the parameter server at {self._address}: {describe(error)}"
                    ) from error
                log.info("the parameter server cannot be reached: %s", describe(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_S[1])

    async def _renew(self, lease: str, lease_s: float) -> None:
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(lease_s / 3)
            try:
                reply = await self._stub.Renew(
                    pb.RenewRequest(lease=lease), timeout=min(self._rpc_s, lease_s / 3)
                )
            except grpc.aio.AioRpcError as error:
                log.warning(
                    "a lease of %g s (rlax.deadlines.lease_s) could not be renewed for %.1f s: %s",
                    lease_s,
                    time.monotonic() - renewed_s,
                    describe(error),
                )
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return  # lost: checksums and fingerprints tell whether the bytes are too
            else:
                renewed_s, lease_s = time.monotonic(), reply.lease_s

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise DeadlineError(
                    f"a call to the parameter server at {self._address}",
                    self._rpc_s,
                    "rlax.deadlines.rpc_s",
                ) from error
            raise WeightsError(
                f"the parameter server at {self._address}: {describe(error)}"
            ) from error
