"""The sending half of streamed weights: the files of a leased part, to a few readers at a time."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncGenerator

import grpc

from rlax_plugin.concurrency.threads import BackgroundWorker, on_daemon
from rlax_plugin.errors import WeightsError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import VersionPart, WeightVersion
from rlax_plugin.weights.leased_versions import VersionTable
from rlax_plugin.weights.part_files import PartFile, chunks_of, list_files

TURN_S = 30.0
"""Duration of one stream, after which its reader asks again: one that does not read ends too."""

MOST_OF_ONE = 2
"""Maximum number of streams of one lease: a reader has two while a broken one is given up."""

_LONGEST_TURN_S = 2 * TURN_S  # deadline of a call, as its server counts it
_LIST_S = 5.0  # wait of one call for a list, which may take longer: its files are digested
_SHOWN = 200  # characters of what a reader has sent

Context = grpc.aio.ServicerContext
_Listing = asyncio.Future[tuple[PartFile, ...]]


class PartStreams:
    """Lists the files of parts, and sends them. Lives on one event loop, and never blocks it.

    Files are read on threads, one for each stream. A stream holds a few chunks at a time: the next
    one is read when the connection has taken the one before.

    Args:
      table: the versions and their leases.
      most: maximum number of streams at the same time.

    Attributes:
      sent_bytes: bytes that were handed to connections.
    """

    def __init__(self, table: VersionTable, most: int):
        self._table, self._most = table, most
        self._listings: dict[str, _Listing] = {}  # by path
        self._open: Counter[str] = Counter()  # streams, by lease
        self._asked = False
        self.sent_bytes = 0

    async def files(self, request: pb.FilesRequest, context: Context) -> pb.FilesReply:
        """Answers a ``Files`` call."""
        part = await self._part(request.lease, request.part, context)
        found = await self._listed(part, context)
        files = (pb.File(name=file.name, size=file.size, sha256=file.sha256) for file in found)
        return pb.FilesReply(files=files)

    async def fetch(self, request: pb.FetchRequest, context: Context) -> AsyncGenerator[pb.Chunk]:
        """Answers a ``Fetch`` call."""
        part = await self._part(request.lease, request.part, context)
        left_s = context.time_remaining()
        if left_s is None or left_s > _LONGEST_TURN_S:
            reason = f"a stream must have a deadline of at most {_LONGEST_TURN_S:g} s"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        files = await self._listed(part, context)
        # The name is only compared: no path is made of what a reader sends.
        place = next((i for i, file in enumerate(files) if file.name == request.file), None)
        if place is None or not 0 <= request.offset <= files[place].size:
            shown = one_line(repr(request.file), _SHOWN)
            reason = f"part {part.name} has no byte {request.offset} of a file {shown}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            raise AssertionError  # abort raises
        own = self._open[request.lease]
        if own >= MOST_OF_ONE or self._open.total() >= self._most:
            reason = f"{self._open.total()} streams are open, {own} of them of this reader"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, reason)
        self._open[request.lease] += 1
        reader = BackgroundWorker("a stream of weights", 2)
        chunks = chunks_of(part.path, files, place, request.offset)
        loop = asyncio.get_running_loop()
        try:
            read = functools.partial(next, chunks, None)
            while (chunk := await loop.run_in_executor(reader, read)) is not None:
                self._table.lease(request.lease)
                yield chunk
                self.sent_bytes += len(chunk.data)
        except OSError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, one_line(str(error)))
        except WeightsError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        finally:
            # Where the disk hangs, the thread does too, and so long its place is taken.
            closed = asyncio.wrap_future(reader.submit(chunks.close))
            closed.add_done_callback(lambda _: self._ended(request.lease))
            reader.shutdown()

    def _ended(self, lease: str) -> None:
        self._open[lease] -= 1
        if not self._open[lease]:
            del self._open[lease]

    async def _part(self, lease: str, name: str, context: Context) -> VersionPart:
        try:
            version = self._table.lease(lease).version
        except WeightsError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError from error  # abort raises
        part = next((part for part in version.parts if part.name == name), None)
        if part is None:
            shown = one_line(repr(name), _SHOWN)
            reason = f"version {version.version} has no part {shown}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            raise AssertionError  # abort raises
        if "://" in part.path:
            reason = (
                f"{one_line(part.path)} is on an object store, which a worker reads by itself: it "
                "must set rlax.weights.transfer to path"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        return part

    def expect(self, version: WeightVersion) -> None:
        """Begins to list the files of a new version, if those of earlier ones were asked for."""
        if self._asked:
            for part in version.parts:
                self._listing(part)

    def _listing(self, part: VersionPart) -> _Listing:
        for path in self._listings.keys() - self._table.paths:
            del self._listings[path]
        listing = self._listings.get(part.path)
        if listing is None:
            work = on_daemon(functools.partial(list_files, part.path), "a list of weights")
            listing = self._listings[part.path] = asyncio.wrap_future(work)
            # The error belongs to those who wait, of whom there may be none any more.
            listing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return listing

    async def _listed(self, part: VersionPart, context: Context) -> tuple[PartFile, ...]:
        self._asked = True
        listing = self._listing(part)
        await asyncio.wait({listing}, timeout=_LIST_S)
        if not listing.done():
            reason = f"the files of part {part.name} are still being read"
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        try:
            return listing.result()
        except OSError as error:
            self._forget(part, listing)
            await context.abort(grpc.StatusCode.UNAVAILABLE, one_line(str(error)))
            raise AssertionError from error  # abort raises
        except WeightsError as error:
            self._forget(part, listing)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, one_line(str(error)))
            raise AssertionError from error  # abort raises

    def _forget(self, part: VersionPart, listing: _Listing) -> None:
        """Lets the next call look again."""
        if self._listings.get(part.path) is listing:
            del self._listings[part.path]
