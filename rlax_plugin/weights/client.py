"""The client of the parameter server, for readers and trainers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import grpc

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import DeadlineError, WeightsError, WeightsUnreadableError
from rlax_plugin.base.types import NATIVE, WeightVersion
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.secret import Access
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.weights.messages import version_from_proto, version_to_proto

log = logging.getLogger("rlax.parameter_server")

_WATCH_S = 300.0  # one Watch stream; it is opened again when this is over
_ACQUIRE_PAUSE_S = 0.5  # before a parameter server that is away is asked for a lease again
# First and longest pause before a broken Watch is opened again, or a lease renewed that was not.
# Other calls have the same longest one: to ask in vain costs nothing, unlike writing weights.
_BACKOFF_S = (0.1, 2.0)
# The server is away, or is being ended: another one may take its place.
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
# Others may watch less in a while, and a rotated token may reach this machine late.
_PASSING = (
    *_AWAY,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
)


@dataclass(slots=True)
class Held:
    """The present lease on a version; after a restart of the server another one replaces it.

    Attributes:
      lease: its id.
      lease_s: its duration unless it is renewed.
      version: the leased version.
      renewing: held while the lease is renewed or replaced.
    """

    lease: str
    lease_s: float
    version: WeightVersion
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)


class ParameterServerClient:
    """Calls one parameter server; make and use it on one event loop.

    A call may reach the server twice, because an answer that is lost with the server looks like a
    call that never arrived: see ``VersionTable.publish``.

    Args:
      address: host:port.
      secret: is shown to the server.
      rpc_s: deadline of every call except the watch's stream.
      outage_s: time for which a call is repeated while the server cannot be reached or does not
        answer; 0: each call is made once.
      holder: names this reader in messages; host and process id by default.
      weights_format: of the parts that this reader reads; it sees no version that lacks them.
    """

    def __init__(
        self,
        address: str,
        secret: Access,
        rpc_s: float,
        *,
        outage_s: float = 0.0,
        holder: str = "",
        weights_format: str = NATIVE,
    ):
        self._format = weights_format
        self._address, self._rpc_s, self._outage_s = address, rpc_s, outage_s
        self._holder = holder or f"{socket.gethostname()}:{os.getpid()}"
        self._connection = connect(address, secret)
        self._stub = rpc.ParameterServerStub(self._connection)

    async def latest(self) -> WeightVersion | None:
        """The newest version; None before the first.

        Raises:
          WeightsError: the server cannot be reached, see ``_call``.
          DeadlineError: it does not answer.
        """
        reply = await self._call(
            "reading the newest version",
            lambda: self._stub.Latest(pb.LatestRequest(), timeout=self._rpc_s),
        )
        return version_from_proto(reply.version) if reply.any else None

    async def writing(self, path: str) -> None:
        """Does nothing: a server in another process learns of a version when it is published."""

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Announces a version whose bytes are already in place; see ``ParameterServer.publish``.

        Raises:
          WeightsError: rejected (a different version of this number or a newer one exists), or the
            server is unreachable, see ``_call``.
          DeadlineError: it does not answer.
        """
        request = pb.PublishRequest(version=version_to_proto(version), restart=restart)
        await self._call(
            f"announcing version {version.version}",
            lambda: self._stub.Publish(request, timeout=self._rpc_s),
        )

    @contextlib.asynccontextmanager
    async def acquire(self, version: int | None = None) -> AsyncIterator[WeightVersion]:
        """Holds a version (None: the newest) inside ``async with``, renewing the lease.

        Raises:
          WeightsError: the version no longer exists, or the server is unreachable, see ``_call``.
          DeadlineError: it does not answer.
        """
        async with self.hold(version) as held:
            yield held.version

    @contextlib.asynccontextmanager
    async def hold(self, version: int | None = None) -> AsyncIterator[Held]:
        """Like ``acquire``, but with the lease, which the methods for files need."""
        request = self._wanted(-1 if version is None else version)
        reply = await self._call(
            "leasing a version", lambda: self._stub.Acquire(request, timeout=self._rpc_s)
        )
        held = Held(reply.lease, reply.lease_s, version_from_proto(reply.version))
        renewal = asyncio.ensure_future(self._renew(held))
        try:
            yield held
        finally:
            renewal.cancel()
            try:
                await self._stub.Release(pb.ReleaseRequest(lease=held.lease), timeout=self._rpc_s)
            except grpc.aio.AioRpcError as error:
                why = describe(error, (self._rpc_s, "rlax.deadlines.rpc_s"))
                log.info("a lease was left to expire: %s", why)

    @contextlib.asynccontextmanager
    async def hold_patiently(
        self, version: int | None, deadline_s: float, key: str
    ) -> AsyncIterator[Held]:
        """Like ``hold``, but asks again while it fails: a server that is away may come back.

        Raises:
          DeadlineError: there was no lease for ``deadline_s``, which ``key`` sets.
        """
        end_s = time.monotonic() + deadline_s
        async with contextlib.AsyncExitStack() as lease:
            while True:
                try:
                    held = await lease.enter_async_context(self.hold(version))
                    break
                except (WeightsError, DeadlineError) as error:
                    if time.monotonic() > end_s:
                        what = f"learning from the parameter server which version to load ({error})"
                        raise DeadlineError(what, deadline_s, key) from error
                    log.warning("no weights yet, asking again in %g s: %s", _ACQUIRE_PAUSE_S, error)
                await asyncio.sleep(_ACQUIRE_PAUSE_S)
            yield held

    async def files(self, held: Held, part: str) -> pb.FilesReply:
        """The files of a part of a held version, as the server lists them; one call.

        Raises:
          AioRpcError: the call failed.
        """
        request = pb.FilesRequest(lease=held.lease, part=part)
        return await self._stub.Files(request, timeout=self._rpc_s)

    def fetch(
        self, held: Held, part: str, file: str, offset: int, within_s: float
    ) -> grpc.aio.UnaryStreamCall[pb.FetchRequest, pb.Chunk]:
        """A call that receives a part from one byte of a file on."""
        request = pb.FetchRequest(lease=held.lease, part=part, file=file, offset=offset)
        return self._stub.Fetch(request, timeout=within_s)

    async def renew(self, held: Held) -> bool:
        """Renews a lease at once, or takes another one on the same bytes; True if it has one.

        Raises:
          AioRpcError: the server could not be asked.
        """
        async with held.renewing:
            return await self._renew_once(held)

    async def watch(self, after: int = -1, machine: str = "") -> AsyncIterator[WeightVersion]:
        """Yields versions newer than ``after``, in order, until it is closed or cancelled.

        With ``machine``, of ``this_machine``, a version of which there is a copy in memory comes
        twice: first with the copy, and without it once it can be leased.

        After a restart of the trainer the next one may have a lower number, or the same one again.
        The server skips what a slow reader has missed. A broken connection is opened again, with a
        growing pause.

        Raises:
          WeightsError: the server rejects the call.
        """
        pause_s = _BACKOFF_S[0]
        while True:
            # Not wait_for_ready: a refused connection is reported, and the pause grows.
            request = pb.WatchRequest(after=after, machine=machine, format=self._format)
            call = self._stub.Watch(request, timeout=_WATCH_S)
            try:
                async for message in call:
                    pause_s = _BACKOFF_S[0]
                    version = version_from_proto(message)
                    if not version.in_memory:
                        after = version.version
                    yield version
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue
                if error.code() not in _PASSING:
                    raise WeightsError(
                        f"watching the parameter server at {self._address}: {describe(error)}"
                    ) from error
                await self._connection.diagnose(error)
                log.info("the parameter server cannot be reached: %s", describe(error))
            finally:
                call.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _BACKOFF_S[1])

    async def close(self) -> None:
        """Ends the connection; watches must have ended."""
        await self._connection.close()

    def _wanted(self, version: int) -> pb.AcquireRequest:
        return pb.AcquireRequest(version=version, holder=self._holder, format=self._format)

    async def _renew(self, held: Held) -> None:
        renewed_s, pause_s = time.monotonic(), held.lease_s / 3
        after_failure_s = _BACKOFF_S[0]
        while True:
            await asyncio.sleep(pause_s)
            try:
                kept = await self.renew(held)
            except grpc.aio.AioRpcError as error:
                log.warning(
                    "a lease of %g s (rlax.deadlines.lease_s) could not be renewed for %.1f s: %s",
                    held.lease_s,
                    time.monotonic() - renewed_s,
                    describe(error),
                )
                pause_s = min(after_failure_s, held.lease_s / 3)
                after_failure_s = min(2 * after_failure_s, _BACKOFF_S[1])
            else:
                if not kept:
                    return  # checksums and fingerprints tell whether the bytes are lost too
                renewed_s, pause_s = time.monotonic(), held.lease_s / 3
                after_failure_s = _BACKOFF_S[0]

    async def _renew_once(self, held: Held) -> bool:
        """See ``renew``.

        A restarted server knows the versions of its index, but no leases.
        """
        within_s = min(self._rpc_s, held.lease_s / 3)
        try:
            renewed = await self._stub.Renew(pb.RenewRequest(lease=held.lease), timeout=within_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
        else:
            held.lease_s = renewed.lease_s
            return True
        wanted = self._wanted(held.version.version)
        try:
            reply = await self._stub.Acquire(wanted, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            log.warning("the lease on version %d is lost: %s", wanted.version, describe(error))
            return False
        held.lease, held.lease_s = reply.lease, reply.lease_s  # given back in any case
        if tuple(part.path for part in reply.version.parts) != held.version.paths:
            log.warning("the lease on version %d is lost: it was published again", wanted.version)
            return False
        return True

    async def _call[T](self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Makes a call, and repeats it for ``outage_s`` while the server is away.

        Raises:
          WeightsUnreadableError: the server cannot be reached, and calls are made once.
          DeadlineError: it did not answer within ``rpc_s``, or it was away for ``outage_s``.
          WeightsError: it answered, and rejected the call.
        """
        pauses, tries = Pauses(self._outage_s, _BACKOFF_S[1]), 0
        where = f"the parameter server at {self._address}"
        while True:
            tries += 1
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                await self._connection.diagnose(error)
                why = describe(error, (self._rpc_s, "rlax.deadlines.rpc_s"))
                late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                if not late and error.code() not in _AWAY:
                    raise WeightsError(f"{where}: {why}") from error
                if not self._outage_s:
                    if late:
                        key = "rlax.deadlines.rpc_s"
                        raise DeadlineError(f"a call to {where}", self._rpc_s, key) from error
                    raise WeightsUnreadableError(f"{where}: {why}") from error
                if pauses.over:
                    raise DeadlineError(
                        f"{what} ({tries} failed attempts, the last with: {where}: {why})",
                        self._outage_s,
                        "rlax.deadlines.weights_s",
                    ) from error
                pause_s = pauses.next_s()
            log.warning("%s failed, trying again in %g s: %s: %s", what, pause_s, where, why)
            await asyncio.sleep(pause_s)
