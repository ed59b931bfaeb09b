"""A worker's own copies of the weights that it was sent, in a directory that only it uses."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import random
import shutil
import stat
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rlax_plugin.concurrency.threads import BackgroundWorker
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.user_directories import cache_home
from rlax_plugin.errors import ConfigError, WeightsError, WeightsUnreadableError
from rlax_plugin.records.private import check_private, make_private
from rlax_plugin.types import VersionPart, WeightVersion
from rlax_plugin.weights.client import Held, ParameterServerClient
from rlax_plugin.weights.part_download import PartDownload, Patience
from rlax_plugin.weights.taking import Reading

log = logging.getLogger("rlax.worker")

_KEY = "rlax.weights.stream_dir"
_PREFIX, _LOCK = "worker-", ".lock"
_JITTER_S = 0.1  # all workers hear of a version at the same moment
_MOST_WORK = 1000  # pieces of work on files that may wait
_END_S = 10.0  # for a write that is under way when the worker ends


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
        self._parts: dict[str, PartDownload] = {}  # by the server's path
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
          WeightsUnreadableError: they could not be received, see ``PartDownload.run``.
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
                self._parts[part.path] = PartDownload(part, self._place(part.path), self._disk)
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
        """Deletes everything. Blocking; a write that hangs is waited for with a limit."""
        if not self._disk.end(_END_S):
            log.warning("a write into %s hangs", self._directory)
        for download in self._parts.values():
            download.close()
        shutil.rmtree(self._directory, ignore_errors=True)

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
    try:
        make_private(place)
        check_private(_KEY, given or str(place), place)
        delete_leftovers(place)
        descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK, dir=place)
    except OSError as error:
        reason = f"cannot be written: {error.filename or place}: {error.strerror}"
        raise ConfigError(_KEY, given or str(place), reason) from error
    own = Path(name.removesuffix(_LOCK))
    with open(descriptor, "w") as lock:
        with suppress(OSError):  # a file system without locks: then nothing is ever left over
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        own.mkdir(0o700)  # after the lock, so that one with a free lock is left over
        copies = LocalCopies(own, deadlines.weights_s, deadlines.rpc_s)
        try:
            yield copies
        finally:
            copies.close()
            Path(name).unlink(missing_ok=True)


def delete_leftovers(place: Path) -> None:
    """Deletes the directories of workers that were killed. The lock of each living one is taken.

    Raises:
      OSError: the directory cannot be listed.
    """
    for own in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is in use, or another worker deletes it
            status = own.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                _delete_left(own)


def _delete_left(own: Path) -> None:
    """Deletes one directory.

    Raises:
      OSError: its worker is alive.
    """
    path = own.with_name(own.name + _LOCK)
    with path.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(own)
        path.unlink()
