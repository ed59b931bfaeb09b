"""The parameter server as a gRPC service, inside the trainer or in a process of its own."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import RlaxError, WeightsError, WeightsUnwritableError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import file_at
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import NATIVE, SAFETENSORS, WeightVersion
from rlax_plugin.ports.protocols import WeightStore
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.doors import Door, listen
from rlax_plugin.weights.kept_versions import (
    Listed,
    is_in,
    listed_in_index,
    record_versions,
    versions_to_json,
)
from rlax_plugin.weights.leased_versions import TooManyLeasesError, VersionTable
from rlax_plugin.weights.memory_copies import THIS_PROCESS, this_machine
from rlax_plugin.weights.messages import version_from_proto, version_to_proto
from rlax_plugin.weights.streams import FileStreams

log = logging.getLogger("rlax.parameter_server")

_LONGEST_HOLDER = 256  # characters of what a reader says of itself
_MOST_WAITING = 100_000  # deletions and lists; each version makes a handful

MOST_WATCHES = 8192
"""Maximum number of open Watch streams: each reader has one, and there are up to 4096 workers."""

Context = grpc.aio.ServicerContext


class ParameterServer(rpc.ParameterServerServicer):
    """Owns the versions of one run. Lives on one event loop; nothing in it blocks the loop.

    Args:
      store: deletes the bytes of retired versions.
      keep: number of newest versions that stay; leased ones stay as well.
      lease_s: duration of a reader's lease before renewal.
      record: called on a thread with the text of ``versions_to_json`` whenever it changes.
      close_s: maximum time that ``close`` waits for unfinished deletions and records.
      clock: monotonic seconds, by which leases expire.
      listed: versions recorded by an earlier process. They can be acquired until a trainer
        publishes again, and are deleted after that, as newer versions come.
      published_in: directory in which a trainer in another process writes its versions. Only parts
        directly in it can be published over gRPC, and a version is published once it is recorded.
        None: the service has no Publish, because the trainer is in this process.
      streams: number of readers to which files are sent at the same time.

    Attributes:
      streams: sends the files of versions.
      watched_here: open watches of readers that can read copies in this machine's memory.
      watched_inside: open watches of readers in the trainer's processes.
    """

    def __init__(
        self,
        store: WeightStore,
        *,
        keep: int,
        lease_s: float,
        close_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        record: Callable[[str], None] | None = None,
        listed: Listed = Listed(),  # noqa: B008  it is frozen
        published_in: str | None = None,
        streams: int = 8,
    ):
        self._store, self._record, self._close_s = store, record, close_s
        self._published_in = published_in
        self._table = VersionTable(
            keep=keep, lease_s=lease_s, versions=listed.versions, clock=clock
        )
        self.streams = FileStreams(self._table, streams)
        # Paths to delete, until they are: a deletion that failed is tried again with the next
        # version, and by the next process.
        self._doomed = dict.fromkeys(listed.retired)
        self._deleting: set[str] = set()
        self._files = BackgroundWorker("the parameter server", _MOST_WAITING)
        self._pending: set[asyncio.Future[Any]] = set()
        self._expiry: asyncio.TimerHandle | None = None
        self._restarts = 0  # of the trainer: versions begin anew, at whatever number
        self._changed = asyncio.Event()  # replaced at every change, so that no waiter misses one
        self._closed = False
        self._watches = self.watched_here = self.watched_inside = 0  # that are open
        self._machine = this_machine()
        # In memory, perhaps not published yet: for readers of this machine, and of the trainer.
        self._offered: dict[str, WeightVersion] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers this service with ``server``; call before the server starts."""
        rpc.add_ParameterServerServicer_to_server(self, server)

    @property
    def latest(self) -> WeightVersion | None:
        """The newest version; None before the first."""
        return self._table.latest

    async def writing(self, path: str) -> None:
        """Records a path before a part is written there; returns once the record is written.

        If the writer is killed, the next process finds the path on record and deletes the files.
        """
        self._doomed[path] = None
        if (noting := self._note_versions()) is not None:
            await noting

    @property
    def watched_elsewhere(self) -> int:
        """Open watches of readers in other processes than the trainer's."""
        return self._watches - self.watched_inside

    async def offer(self, version: WeightVersion, inside: bool) -> None:
        """Shows the next version, of which there is a copy in memory, to those who can read it.

        Nothing else knows of it until it is published.

        Args:
          inside: True if readers in the trainer's processes can, False if others of this machine
            can.
        """
        self._offered[THIS_PROCESS if inside else self._machine] = version
        self._wake()

    async def publish(self, version: WeightVersion, restart: bool = False) -> None:
        """Makes a version visible whose bytes are already in place.

        Args:
          restart: True for the first version of a trainer process; this version and those above it,
            which an earlier process published, become void.

        Raises:
          WeightsUnwritableError: the record cannot be written. Publishing again also writes it
            again.
          WeightsError: a different version of this number or a newer one is already published, and
            this is no restart.
        """
        retired = self._table.publish(version, restart)
        self._restarts += restart
        for memory, offered in list(self._offered.items()):
            if restart or offered.version < version.version:
                del self._offered[memory]
        for path in version.all_paths:
            self._doomed.pop(path, None)
        self._doomed |= dict.fromkeys(retired)
        if self._published_in is not None and self._record is not None:
            loop = asyncio.get_running_loop()
            writing = loop.run_in_executor(self._files, self._record, self._index_text())
            self._pending.add(writing)
            writing.add_done_callback(self._pending.discard)
            await writing
        else:
            self._note_versions()  # nobody waits for that: workers pull meanwhile
        self._wake()
        self._delete(list(self._doomed))
        self._arm()

    async def close(self) -> None:
        """Ends every watch, and waits at most ``close_s`` for unfinished deletions and records."""
        self._forget(self._table.forget_former_readers())
        self._closed = True
        self._wake()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._pending:
            await asyncio.wait(self._pending, timeout=self._close_s)
        self._files.shutdown(wait=False, cancel_futures=True)

    # The service's methods have the names that the protocol gives them.

    async def Publish(self, request: pb.PublishRequest, context: Context) -> pb.PublishReply:
        if self._published_in is None:
            reason = "the trainer that has this parameter server publishes by itself"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        if self._closed:  # its successor will take it
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the parameter server is being ended")
        # Parts that are not needed any more are deleted: nothing else may ever be.
        paths = (part.path for part in (*request.version.parts, *request.version.converted))
        place = {self._published_in}
        if (elsewhere := next((p for p in paths if not is_in(place, p)), None)) is not None:
            reason = (
                f"version {request.version.version} lies in {one_line(elsewhere, 500)}, and "
                f"this parameter server takes only what is directly in {self._published_in}: start "
                "it with the run's own config and arguments, in the same directory"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        try:
            version = version_from_proto(request.version)
            if version.in_memory:
                raise WeightsError(f"version {version.version} is one in memory of this machine")
        except WeightsError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            await self.publish(version, request.restart)
        except WeightsUnwritableError as error:  # its disk is full, perhaps for a while
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except WeightsError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PublishReply()

    async def Latest(self, request: pb.LatestRequest, context: Context) -> pb.LatestReply:
        latest = self._table.latest
        if latest is None:
            return pb.LatestReply(any=False)
        return pb.LatestReply(any=True, version=version_to_proto(latest))

    async def Acquire(self, request: pb.AcquireRequest, context: Context) -> pb.AcquireReply:
        wanted = None if request.version < 0 else request.version
        weights_format = await self._format(request, context)
        try:
            holder = one_line(request.holder, _LONGEST_HOLDER)
            lease = self._table.acquire(wanted, holder, context.peer(), weights_format)
        except TooManyLeasesError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except WeightsError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        self._arm()
        return pb.AcquireReply(
            lease=lease.id, lease_s=self._table.lease_s, version=version_to_proto(lease.read)
        )

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewReply:
        try:
            self._table.renew(request.lease)
        except WeightsError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        return pb.RenewReply(lease_s=self._table.lease_s)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseReply:
        self._forget(self._table.release(request.lease))
        return pb.ReleaseReply()

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.Version]:
        # Lives until the caller's deadline, which gRPC enforces by cancelling this.
        if self._watches >= MOST_WATCHES:
            reason = f"{MOST_WATCHES} watches are open, and no more are taken"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        weights_format = await self._format(request, context)
        machine = request.machine if weights_format == NATIVE else ""  # no other is in memory
        self._counts(machine, 1)
        try:
            async for version in self._news(request.after, machine, weights_format):
                yield version
        finally:
            self._counts(machine, -1)

    @staticmethod
    async def _format(request: pb.AcquireRequest | pb.WatchRequest, context: Context) -> str:
        if (name := request.format or NATIVE) not in (NATIVE, SAFETENSORS):
            reason = f"no version has the format {one_line(name, _LONGEST_HOLDER)}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        return name

    def _counts(self, machine: str, more: int) -> None:
        self._watches += more
        self.watched_here += more * (bool(self._machine) and machine == self._machine)
        self.watched_inside += more * (machine == THIS_PROCESS)

    async def Files(self, request: pb.FilesRequest, context: Context) -> pb.FilesReply:
        return await self.streams.files(request, context)

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.Chunk]:
        async with aclosing(self.streams.fetch(request, context)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _news(
        self, after: int, machine: str, weights_format: str
    ) -> AsyncIterator[pb.Version]:
        # Numbers grow except over a restart, so another number than the reader's is news to it.
        seen = offer = (self._restarts, after)
        while not self._closed:
            changed, latest = self._changed, self._table.latest
            latest = None if latest is None else latest.of_format(weights_format)
            offered = self._offered.get(machine)
            if latest is not None and (self._restarts, latest.version) != seen:
                seen = (self._restarts, latest.version)
                # Returns once the reader has room; what was published meanwhile is skipped.
                yield version_to_proto(latest)
            elif offered and (self._restarts, offered.version) not in (seen, offer):
                offer = (self._restarts, offered.version)
                yield version_to_proto(offered)
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget(self, paths: Sequence[str]) -> None:
        """Deletes parts that no lease holds any more, after removing them from the record."""
        if paths:
            self._doomed |= dict.fromkeys(paths)
            self._note_versions()
        self._delete(paths)

    def _index_text(self) -> str:
        versions = self._table.versions
        acquirable = {path for version in versions for path in version.all_paths}
        void = (path for version in self._table.void for path in version.all_paths)
        ending = dict.fromkeys((*void, *self._doomed))
        return versions_to_json(versions, [path for path in ending if path not in acquirable])

    def _note_versions(self) -> asyncio.Future[None] | None:
        if self._record is None or self._closed:
            return None
        loop, text = asyncio.get_running_loop(), self._index_text()
        noting = loop.run_in_executor(self._files, self._note, self._record, text)
        self._pending.add(noting)
        noting.add_done_callback(self._pending.discard)
        return noting

    @staticmethod
    def _note(record: Callable[[str], None], text: str) -> None:
        try:
            record(text)
        except RlaxError as error:
            log.error("the record of weight versions is out of date: %s", error)

    def _delete(self, paths: Iterable[str]) -> None:
        if self._closed:
            return
        loop, needed = asyncio.get_running_loop(), self._table.paths
        for path in [p for p in paths if p not in self._deleting and p not in needed]:
            self._deleting.add(path)
            deletion = loop.run_in_executor(self._files, self._delete_one, path)
            self._pending.add(deletion)
            deletion.add_done_callback(functools.partial(self._deleted, path))

    def _deleted(self, path: str, deletion: asyncio.Future[bool]) -> None:
        self._pending.discard(deletion)
        self._deleting.discard(path)
        if not deletion.cancelled() and deletion.result():
            self._doomed.pop(path, None)

    def _delete_one(self, path: str) -> bool:
        reached(FaultPoint.WEIGHTS_RETIRED)
        try:
            self._store.delete(path)
        except (WeightsError, OSError) as error:
            # Costs space, no correctness: nobody can acquire the version any more.
            log.error("a retired version stays on disk for now: %s", error)
            return False
        return True

    def _arm(self) -> None:
        """Schedules a call when the first lease expires, to delete a dead reader's version."""
        wait_s = self._table.next_expiry_s
        if self._expiry is None and wait_s is not None and not self._closed:
            self._expiry = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        self._forget(self._table.expire())
        self._arm()


async def serve_parameter_server(
    host: str,
    port: int,
    door: Door,
    store: WeightStore,
    keep: int,
    lease_s: float,
    ready: Callable[[str], None],
    *,
    published_in: str,
    index: Path | None = None,
    advertised: str = "",
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None,
    streams: int = 8,
) -> None:
    """Runs a parameter server until SIGINT or SIGTERM; for a process of its own.

    Args:
      host: address to bind.
      port: 0 takes any free one.
      door: lets the run's trainer and workers in.
      store: the weight store.
      keep, lease_s, published_in, streams: see ``ParameterServer``.
      ready: called once with "host:port" when the server answers.
      index: file that stores the versions across a restart; None: they are not stored.
      advertised: host by which others reach it; "": ``host``.
      beside: runs while the server serves, until it is cancelled.

    Raises:
      ConfigError: the port is taken.
      WeightsError: ``index`` cannot be read.
    """
    record = None
    if index is not None:
        files, name = file_at(str(index))
        record = functools.partial(record_versions, files, name=name)
    service = ParameterServer(
        store,
        keep=keep,
        lease_s=lease_s,
        record=record,
        listed=Listed() if index is None else listed_in_index(index, published_in),
        published_in=published_in,
        streams=streams,
    )
    server, address = listen(host, port, door, "--port", advertised=advertised)
    service.add_to(server)
    await server.start()
    terminated = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, terminated.set)
    upkeep = None if beside is None else asyncio.ensure_future(beside())
    try:
        ready(address)
        await terminated.wait()
    finally:
        if upkeep is not None:
            upkeep.cancel()
        await service.close()
        await server.stop(grace=1.0)
