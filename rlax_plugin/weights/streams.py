"""The sending half of streamed weights: the files of a leased part, to a few readers at a time.

The server trusts no name that a worker sends: it looks it up in its own list, and reads files
without following links. A worker trusts no list: names, sizes and counts are checked before
anything is written (``check_files``).
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import stat
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import dataclass
from typing import cast

import google_crc32c
import grpc
import ml_dtypes  # noqa: F401  registers bfloat16 and its like under their names

from rlax_plugin.base.concurrency.threads import BackgroundWorker, on_daemon
from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import TensorSpec, VersionPart
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.weights.leased_versions import VersionTable

CHUNK_BYTES = 1 << 20
"""Maximum size of the data in a message."""
MOST_FILES = 100_000
"""Maximum number of files of one part."""
MOST_NAME_BYTES = 8 << 20
"""Maximum bytes of all names of one part, whose list is one message."""
TURN_S = 30.0
"""Duration of one stream, after which its reader asks again: one that does not read ends too."""
MOST_OF_ONE = 2
"""Maximum number of streams of one lease: a reader has two while a broken one is given up."""

_LONGEST_TURN_S = 2 * TURN_S  # deadline of a call, as its server counts it
_LIST_S = 5.0  # wait of one call for a list, which takes longer where the disk hangs
_LONGEST_NAME = 1024  # bytes
_LONGEST_SEGMENT = 255  # bytes, of most file systems
_MOST_SEGMENTS = 32
_SHOWN = 200  # characters of a name in a message
# Beside its numbers, a store writes metadata and checksums, and may pad: files may take half as
# much again as the tensors, and this much for each tensor and each part.
_FACTOR, _TENSOR_BYTES, _PART_BYTES = 1.5, 64 << 10, 1 << 20
_UNKNOWN_BYTES = 16  # of an element whose dtype is unknown here
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # which opens a named pipe without waiting


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of a part.

    Attributes:
      name: relative to the part's directory, with slashes.
      size: bytes.
    """

    name: str
    size: int


def crc32c(data: bytes) -> int:
    return cast(int, google_crc32c.value(data))


def most_bytes(part: VersionPart) -> int:
    """Maximum bytes of all files of a part, with a margin for metadata and padding."""
    numbers = sum(map(_nbytes, part.tensors.values()))
    return int(_FACTOR * numbers) + len(part.tensors) * _TENSOR_BYTES + _PART_BYTES


def _nbytes(tensor: TensorSpec) -> int:
    try:
        return tensor.nbytes
    except TypeError:
        return math.prod(tensor.shape) * _UNKNOWN_BYTES


def check_files(part: VersionPart, files: Sequence[ListedFile]) -> None:
    """Checks a list that came from a server.

    Raises:
      ValueError: it names a file outside of the part's directory, or it is longer or larger than
        the files of this part can be.
    """
    if not files:
        raise ValueError(f"part {part.name} has no files")
    if len(files) > MOST_FILES:
        raise ValueError(f"part {part.name} has {len(files):,} files, more than {MOST_FILES:,}")
    if sum(len(file.name) for file in files) > MOST_NAME_BYTES:
        raise ValueError(f"the file names of part {part.name} exceed {in_bytes(MOST_NAME_BYTES)}")
    folders: set[str] = set()
    names: set[str] = set()
    for file in files:
        shown = one_line(repr(file.name), _SHOWN)
        if (problem := name_problem(file.name)) is not None:
            raise ValueError(f"part {part.name} has a file {shown}, {problem}")
        if file.size < 0:
            raise ValueError(f"part {part.name} has a file {shown} of impossible size")
        if file.name in names:
            raise ValueError(f"part {part.name} has the file {shown} twice")
        names.add(file.name)
        segments = file.name.split("/")
        folders.update("/".join(segments[:end]) for end in range(1, len(segments)))
    if both := names & folders:
        shown = one_line(repr(min(both)), _SHOWN)
        raise ValueError(f"part {part.name} has a file {shown} that is a folder as well")
    size, most = sum(file.size for file in files), most_bytes(part)
    if size > most:
        raise ValueError(
            f"the files of part {part.name} take {in_bytes(size)}, and its tensors allow "
            f"{in_bytes(most)}"
        )


def name_problem(name: str) -> str | None:
    """The reason why a name cannot be that of a file inside a directory; None if it can."""
    if not name.isprintable() or len(name.encode()) > _LONGEST_NAME:
        return f"which is not of 1 to {_LONGEST_NAME} bytes of printable characters"
    segments = name.split("/")
    if len(segments) > _MOST_SEGMENTS:
        return f"which is in more than {_MOST_SEGMENTS - 1} folders"
    for segment in segments:
        if segment in ("", ".", "..") or len(segment.encode()) > _LONGEST_SEGMENT:
            return "which is no plain relative path"
    return None


def list_files(directory: str) -> tuple[ListedFile, ...]:
    """The files of a part that is on a disk, in the order of names. Blocking.

    Raises:
      WeightsError: they cannot be sent: one is a link or no ordinary file, or there are none.
      OSError: they cannot be read.
    """
    found: list[ListedFile] = []
    top = len(directory.rstrip("/")) + 1
    for place, folders, names, inside in os.fwalk(directory.rstrip("/"), onerror=_raise):
        for name in folders:
            if stat.S_ISLNK(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
                raise WeightsError(f"{place}/{name} is a link, which is not followed")
        for name in names:
            if (problem := name_problem(name)) is not None:
                raise WeightsError(f"{place} holds {one_line(repr(name), _SHOWN)}: {problem}")
            status = os.stat(name, dir_fd=inside, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise WeightsError(f"{place}/{name} is a link or no ordinary file, and is not sent")
            found.append(ListedFile(f"{place}/{name}"[top:], status.st_size))
    if not found:
        raise WeightsError(f"{directory} has no files")
    return tuple(sorted(found, key=lambda file: file.name))


def _raise(error: OSError) -> None:
    raise error


def chunks_of(
    directory: str, files: Sequence[ListedFile], first: int, offset: int
) -> Generator[pb.Chunk]:
    """Yields the content of files from one byte on. Blocking.

    Args:
      first: index of the file to begin with.
      offset: first byte in this file.

    Raises:
      OSError: a file cannot be read, or is not as long as listed.
    """
    for file in files[first:]:
        descriptor = _opened(directory, file.name)
        try:
            while offset < file.size or not file.size:
                data = os.pread(descriptor, min(CHUNK_BYTES, file.size - offset), offset)
                if not data and file.size:
                    raise OSError(f"{directory}/{file.name} has become shorter than it was")
                yield pb.Chunk(file=file.name, offset=offset, data=data, crc32c=crc32c(data))
                if not file.size:
                    break
                offset += len(data)
        finally:
            os.close(descriptor)
        offset = 0


def _opened(directory: str, name: str) -> int:
    """A descriptor of a file, opened folder by folder, so that no link leads elsewhere."""
    *folders, last = name.split("/")
    here = os.open(directory, _FOLDER)
    try:
        for folder in folders:
            inner = os.open(folder, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(last, _FILE, dir_fd=here)
    finally:
        os.close(here)


Context = grpc.aio.ServicerContext
_Listing = asyncio.Future[tuple[ListedFile, ...]]


class FileStreams:
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
        self.sent_bytes = 0

    async def files(self, request: pb.FilesRequest, context: Context) -> pb.FilesReply:
        """Answers a ``Files`` call."""
        part = await self._part(request.lease, request.part, context)
        found = await self._listed(part, context)
        files = (pb.File(name=file.name, size=file.size) for file in found)
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
            version = self._table.lease(lease).read
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

    async def _listed(self, part: VersionPart, context: Context) -> tuple[ListedFile, ...]:
        for path in self._listings.keys() - self._table.paths:
            del self._listings[path]
        listing = self._listings.get(part.path)
        if listing is None:
            work = on_daemon(functools.partial(list_files, part.path), "a list of weights")
            listing = self._listings[part.path] = asyncio.wrap_future(work)
            # Its error is known, even if no caller waits any more.
            listing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({listing}, timeout=_LIST_S)
        if not listing.done():
            reason = f"the files of part {part.name} are still being listed"
            await context.abort(grpc.StatusCode.UNAVAILABLE, reason)
        try:
            return listing.result()
        except (OSError, WeightsError) as error:
            self._listings.pop(part.path, None)  # the next call looks again
            away = isinstance(error, OSError)
            code = grpc.StatusCode.UNAVAILABLE if away else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, one_line(str(error)))
            raise AssertionError from error  # abort raises
