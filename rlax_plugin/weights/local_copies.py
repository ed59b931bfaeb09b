"""The receiving half of streamed weights: copies in a directory that only their worker uses."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import grpc

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import ConfigError, DeadlineError, WeightsError, WeightsUnreadableError
from rlax_plugin.base.files.private import check_private, make_private, own_directory
from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.base.types import VersionPart, WeightVersion
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.channels import describe, gone
from rlax_plugin.weights.client import Held, ParameterServerClient
from rlax_plugin.weights.streams import CHUNK_BYTES, TURN_S, ListedFile, check_files, crc32c
from rlax_plugin.weights.verification import Reading

log = logging.getLogger("rlax.worker")

_KEY = "rlax.weights.stream_dir"
_JITTER_S = 0.1  # all workers hear of a version at the same moment
_MOST_WORK = 1000  # pieces of work on files that may wait
_END_S = 10.0  # for a write that is under way when the worker ends
_MOST_WRONG = 3  # times in a row that the same bytes may arrive wrong
_BACKOFF_S = (0.1, 1.0)  # first and longest pause before a server is called again
_ROOM_BYTES = 64 << 20  # of the disk, that stay free
_PASSING = (
    grpc.StatusCode.RESOURCE_EXHAUSTED,  # others have their turn
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNKNOWN,
)


class _WrongBytes(Exception):
    """Something else arrived than the next bytes of the part."""


class Patience:
    """The time in which one version must arrive, and each of its messages.

    Args:
      version: its number.
      weights_s: ``rlax.deadlines.weights_s``, for all parts together, with the wait for a turn.
      rpc_s: ``rlax.deadlines.rpc_s``, for each message.
    """

    def __init__(self, version: int, weights_s: float, rpc_s: float):
        self._version, self._weights_s, self.rpc_s = version, weights_s, rpc_s
        self._began_s = time.monotonic()

    @property
    def left_s(self) -> float:
        return max(0.0, self._began_s + self._weights_s - time.monotonic())

    def late(self, received: int, size: int, why: str) -> DeadlineError:
        """The error for bytes that did not arrive in time, with the time that they need."""
        arrived = f"{in_bytes(received)} of {in_bytes(size)} have arrived"
        if not size:
            arrived = "the list of its files has not arrived"
        what = f"streaming version {self._version} ({arrived}; the last failure: {why or 'none'})"
        needed_s = self._weights_s * size / received if received else None
        return DeadlineError(what, self._weights_s, "rlax.deadlines.weights_s", needed_s)


class Download:
    """One part of a version on its way into a directory.

    It keeps its place, so ``run`` can be called again after an error: nothing is received twice.
    Every chunk's checksum is verified before it is written.

    Args:
      part: the part, with the server's path.
      directory: is created; nothing else writes there.
      disk: does all work on files.

    Attributes:
      received: number of bytes that are verified and written.
      size: bytes of all files; 0 until the server has listed them.
    """

    def __init__(self, part: VersionPart, directory: Path, disk: BackgroundWorker):
        self._part, self._directory, self._disk = part, directory, disk
        self._files: tuple[ListedFile, ...] | None = None
        self._index = self._offset = 0
        self._descriptor: int | None = None
        self.received = self.size = 0

    @property
    def whole(self) -> bool:
        """True if all files are there."""
        return self._files is not None and self._index == len(self._files)

    async def run(self, client: ParameterServerClient, held: Held, patience: Patience) -> None:
        """Receives what is missing, and waits as long as the server is away or busy.

        Args:
          held: the lease on a version with this part.

        Raises:
          WeightsUnreadableError: the version is gone, the disk is full, or the server sends
            something else than this part.
          DeadlineError: it did not arrive in time.
        """
        await self._on_disk(lambda: None)  # what was written when an earlier call was cancelled
        pause_s, wrong, why = _BACKOFF_S[0], 0, ""
        while not self.whole:
            if not patience.left_s:
                raise patience.late(self.received, self.size, why)
            before = self.received
            try:
                await self._receive(client, held, patience)
                pause_s, wrong = _BACKOFF_S[0], 0
                continue
            except _WrongBytes as error:
                wrong, why = (1 if self.received > before else wrong + 1), str(error)
                if wrong == _MOST_WRONG:
                    raise self._unreadable(f"{why}, {wrong} times in a row") from None
            except TimeoutError:
                if patience.left_s:  # else it was not waited for so long
                    why = f"nothing arrived for {patience.rpc_s:g} s (rlax.deadlines.rpc_s)"
            except grpc.aio.AioRpcError as error:
                why = await self._reason(error, client, held, patience.rpc_s)
            if self.received > before:
                pause_s = _BACKOFF_S[0]
            # Those that were refused together do not ask together again.
            wait_s = min(random.uniform(0.5, 1.5) * pause_s, patience.left_s)
            log.info("part %s is requested again in %.2g s: %s", self._part.name, wait_s, why)
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, _BACKOFF_S[1])

    def close(self) -> None:
        """Gives the file up that is being written, if there is one. Blocking."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _receive(self, client: ParameterServerClient, held: Held, patience: Patience) -> None:
        """Receives until the part is whole or the turn is over."""
        if self._files is None:
            self._files = await self._listed(await client.files(held, self._part.name))
        file, before = self._files[self._index], self.received
        call = client.fetch(held, self._part.name, file.name, self._offset, TURN_S)
        chunks = aiter(call)
        try:
            while not self.whole:
                async with asyncio.timeout(min(patience.rpc_s, patience.left_s)):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    raise _WrongBytes("the stream ended before the part")
                await self._take(chunk)
        except grpc.aio.AioRpcError as error:
            turn_over = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if not (turn_over and self.received > before):
                raise
        finally:
            call.cancel()

    async def _listed(self, reply: pb.FilesReply) -> tuple[ListedFile, ...]:
        files = tuple(ListedFile(file.name, file.size) for file in reply.files)
        try:
            await self._on_disk(lambda: check_files(self._part, files))
        except ValueError as error:
            raise self._unreadable(str(error)) from None
        self.size = sum(file.size for file in files)
        await self._on_disk(self._prepare)
        return files

    def _prepare(self) -> None:
        self._directory.mkdir(0o700, exist_ok=True)
        free = shutil.disk_usage(self._directory).free
        if free < self.size + _ROOM_BYTES:
            raise self._unreadable(
                f"{self._directory} has {in_bytes(free)} left, and part {self._part.name} takes "
                f"{in_bytes(self.size)} (rlax.weights.stream_dir names another directory)"
            )

    async def _take(self, chunk: pb.Chunk) -> None:
        assert self._files is not None
        file, length = self._files[self._index], len(chunk.data)
        fits = bool(length) == bool(file.size) and length <= CHUNK_BYTES
        if (chunk.file, chunk.offset) != (file.name, self._offset) or not fits:
            raise _WrongBytes(f"another chunk arrived than that of {file.name} at {self._offset}")
        if self._offset + length > file.size:
            raise _WrongBytes(f"more bytes arrived than {file.name} has")
        await self._on_disk(lambda: self._write(file, chunk.data, chunk.crc32c))

    def _write(self, file: ListedFile, data: bytes, checksum: int) -> None:
        if crc32c(data) != checksum:
            raise _WrongBytes(f"the chunk of {file.name} at {self._offset} has a wrong checksum")
        if self._descriptor is None:
            path = self._directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)
        written = 0
        while written < len(data):
            left = memoryview(data)[written:]
            written += os.pwrite(self._descriptor, left, self._offset + written)
        self._offset += len(data)
        self.received += len(data)
        if self._offset == file.size:
            self.close()
            self._index, self._offset = self._index + 1, 0

    async def _reason(
        self, error: grpc.aio.AioRpcError, client: ParameterServerClient, held: Held, rpc_s: float
    ) -> str:
        """A text on a failed call that may be repeated; raises if it may not."""
        why = describe(error, (rpc_s, "rlax.deadlines.rpc_s"))
        if error.code() is grpc.StatusCode.NOT_FOUND:  # by a server that was started again
            try:
                if not await client.renew(held):
                    raise self._unreadable(f"version {held.version.version} is gone: {why}")
            except grpc.aio.AioRpcError as outage:
                return describe(outage, (rpc_s, "rlax.deadlines.rpc_s"))
        elif not gone(error) and error.code() not in _PASSING:
            raise self._unreadable(why)
        return why

    def _unreadable(self, why: str) -> WeightsUnreadableError:
        return WeightsUnreadableError(f"{self._part.path} cannot be streamed: {why}")

    async def _on_disk(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, work)
        except OSError as error:
            raise self._unreadable(f"{self._directory} cannot be written: {error}") from error


def unseen(version: WeightVersion) -> str:
    """Returns advice if this machine has no directory of the run's weights; otherwise ""."""
    places = {Path(path).parent for path in version.paths if "://" not in path}
    if missing := sorted(str(place) for place in places if not place.is_dir()):
        return (
            f". This machine has no directory {missing[0]}: if the trainer's machine has it, start "
            "this worker with rlax.weights.transfer=stream, or set rlax.weights.path to a path "
            "that both see"
        )
    return ""


class LocalCopies:
    """The parts that a worker has received, and those on their way.

    The files are at the same path as long as a part stays the same, so an engine recognises a part
    that it holds.

    Args:
      directory: exists, and belongs to this worker.
      weights_s: see ``Patience``.
      rpc_s: see ``Patience``.
    """

    def __init__(self, directory: Path, weights_s: float, rpc_s: float):
        self._directory, self._weights_s, self._rpc_s = directory, weights_s, rpc_s
        self._disk = BackgroundWorker("copies of weights", _MOST_WORK)
        self._parts: dict[str, Download] = {}  # by the server's path
        self._kept: frozenset[str] = frozenset()  # of the version in use

    async def load(
        self,
        client: ParameterServerClient,
        held: Held,
        reading: Reading,
        into: Callable[[WeightVersion], Awaitable[None]],
    ) -> None:
        """Receives a held version, and has an engine load the copies.

        Args:
          into: makes the engine load a version and use it.

        Raises:
          WeightsError: the weights are damaged, perhaps by this machine's disk: the copies are
            deleted.
          Others: see ``copy`` and ``into``.
        """
        try:
            await into(await self.copy(client, held, reading))
        except WeightsUnreadableError:
            raise
        except WeightsError:
            await self.discard(held.version)
            raise
        await self.keep_only(held.version)

    async def copy(
        self, client: ParameterServerClient, held: Held, reading: Reading
    ) -> WeightVersion:
        """Receives the parts of a held version that are not here yet.

        Copies that belong neither to it nor to the version in use are deleted before.

        Args:
          reading: receives the bytes and the seconds.

        Returns:
          The version with the paths of the copies.

        Raises:
          ConfigError: the weights are on an object store.
          WeightsUnreadableError: they could not be received, see ``Download.run``.
          DeadlineError: they did not arrive in time.
        """
        version = held.version
        for part in version.parts:
            if "://" in part.path:
                reason = (
                    f"cannot be used with weights on an object store, {part.path}: set it to path, "
                    "so that the worker reads the store by itself"
                )
                raise ConfigError("rlax.weights.transfer", "stream", reason)
        await self._delete_all_but(self._kept.union(version.paths))
        for part in version.parts:
            if part.path not in self._parts:
                self._parts[part.path] = Download(part, self._place(part.path), self._disk)
        wanted = [self._parts[path] for path in version.paths]
        if not all(download.whole for download in wanted):
            await asyncio.sleep(random.uniform(0, _JITTER_S))
        patience = Patience(version.version, self._weights_s, self._rpc_s)
        began_s, before = time.perf_counter(), sum(one.received for one in wanted)
        with reading.under_way():
            for download in wanted:
                await download.run(client, held, patience)
        reading.stream_bytes = sum(one.received for one in wanted) - before
        reading.stream_s = time.perf_counter() - began_s
        return replace(version, parts=tuple(map(self._copied, version.parts)))

    async def keep_only(self, version: WeightVersion) -> None:
        """Takes note that a version is in use, and deletes the copies of others.

        Args:
          version: with the server's paths.
        """
        self._kept = frozenset(version.paths)
        await self._delete_all_but(self._kept)

    async def discard(self, version: WeightVersion) -> None:
        """Deletes the copies of a version that was found damaged, so that it is received again."""
        await self._delete_all_but(self._parts.keys() - set(version.paths))

    def close(self) -> None:
        """Ends all work on files. Blocking; a write that hangs is waited for with a limit."""
        if not self._disk.end(_END_S):
            log.warning("a write into %s hangs", self._directory)
        for download in self._parts.values():
            download.close()

    async def _delete_all_but(self, paths: Collection[str]) -> None:
        loop = asyncio.get_running_loop()
        for path in self._parts.keys() - paths:
            download = self._parts.pop(path)
            await loop.run_in_executor(self._disk, download.close)
            await loop.run_in_executor(self._disk, shutil.rmtree, self._place(path), True)

    def _copied(self, part: VersionPart) -> VersionPart:
        return replace(part, path=str(self._place(part.path)))

    def _place(self, path: str) -> Path:
        # Its name is made here: what the server calls the part may be no name of a directory.
        return self._directory / hashlib.sha256(path.encode()).hexdigest()[:32]


@contextmanager
def local_copies(section: RlaxSection) -> Iterator[LocalCopies | None]:
    """The copies of a worker, deleted at its end; None if it reads weights at their path.

    Directories that killed workers have left are deleted first.

    Raises:
      ConfigError: the directory cannot be written, or others can write to it.
    """
    if section.weights.transfer == "path":
        yield None
        return
    given, deadlines = section.weights.stream_dir, section.deadlines
    place = Path(given).absolute() if given else cache_home() / "rlax" / "weights"
    stack = ExitStack()
    try:
        make_private(place)
        check_private(_KEY, given or str(place), place)
        own = stack.enter_context(own_directory(place, "worker-"))
    except OSError as error:
        reason = f"cannot be written: {error.filename or place}: {error.strerror}"
        raise ConfigError(_KEY, given or str(place), reason) from error
    with stack, closing(LocalCopies(own, deadlines.weights_s, deadlines.rpc_s)) as copies:
        yield copies
