"""Writes and reads versions: Orbax commits them, TensorStore moves the bytes.

Orbax's PyTree handler around the same arrays costs about 30 ms a save and 20 ms a load of a tiny
model (one task, two opens and several metadata files per array) and copies once more when it
restores. A version is published at every step, so this store keeps Orbax's directory layout and
its commit (a temporary directory that is renamed, or a commit file on object stores) and gives the
arrays to TensorStore, Orbax's own reader and writer, directly. Stock Orbax opens the result.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import tensorstore as ts
from etils import epath
from orbax import checkpoint as ocp

from rlax_orbax.layout import ARRAY_FILE, METADATA_FILE, Layout, array_spec, decode, encode
from rlax_orbax.pieces import Pieces, Writing, layouts_of, nbytes_of, own_pieces, shares_chunks
from rlax_orbax.time_left import IO_ERRORS, Clock, read_error, write_error
from rlax_plugin.api import Arrays, WeightsError, WeightStore, alternatives

T = TypeVar("T")


class OrbaxStore(WeightStore):
    """Weight versions as Orbax checkpoints.

    Args:
      deadline_s: time limit of one ``save`` or ``load``.
      chunk_bytes: maximum size of a chunk, if the shape allows it.
      in_flight_bytes: host memory for arrays on their way to devices.
      grace_s: time for operations that cannot be stopped: writes under way when a save fails, and
        its commit.
      context: further settings of TensorStore's context.
    """

    shared_writing = True

    def __init__(
        self,
        *,
        deadline_s: float = 120.0,
        chunk_bytes: int = 64 << 20,
        in_flight_bytes: int = 2 << 30,
        grace_s: float = 10.0,
        context: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._deadline_s, self._grace_s = deadline_s, grace_s
        self._chunk_bytes, self._in_flight_bytes = chunk_bytes, in_flight_bytes
        # The directory becomes visible as a whole, so its files need neither a rename each nor
        # fsync: after a machine's crash a version is published anew, and checksums find a torn one.
        settings = {"file_io_sync": False, "file_io_locking": {"mode": "non_atomic"}}
        settings |= dict(context)
        self._context = ts.Context(settings)
        # Chunks that several shards share are cached until all of these have their part.
        cache_bytes = max(in_flight_bytes // 4, chunk_bytes)
        self._caching = {
            "cache_pool": {"total_bytes_limit": cache_bytes},
            "file_io_concurrency": {"limit": min(32, cache_bytes // chunk_bytes)},
            **settings,
        }
        # Orbax's commit is a coroutine. One loop for all: a new one costs more than the commit.
        self._loop = asyncio.new_event_loop()
        self._loop_lock = threading.Lock()
        weakref.finalize(self, self._loop.close)

    def save(self, path: str, arrays: Arrays) -> None:
        """Writes all arrays under a new directory ``path``, atomically; see ``WeightStore``.

        Takes jax arrays, sharded over devices of this process or not, and numpy arrays. Copies
        from devices and launches no computation.

        Raises:
          WeightsUnwritableError: the disk or the network failed.
          WeightsError: ``path`` exists, or an array has a dtype that cannot be stored.
          DeadlineError: it took longer than ``deadline_s``, or its commit than ``grace_s`` more.
        """
        clock = self._clock(path)
        with clock.errors(path, write_error):
            temporary = _new(path)
            pieces = {name: own_pieces(array) for name, array in arrays.items()}
            layouts = layouts_of(arrays, self._chunk_bytes)
            with _removed_if_it_fails(temporary):
                directory = self._run(temporary.create(), clock)
                writing = Writing(str(directory), layouts, self._context, clock)
                with writing.settled(self._grace_s):
                    writing.open(create=True)
                    writing.write(pieces)
                self._commit(temporary, layouts, clock)

    def begin(self, path: str, arrays: Arrays) -> str:
        """Makes a directory with the metadata of all arrays; see ``WeightStore``."""
        clock = self._clock(path)
        with clock.errors(path, write_error):
            temporary = _new(path)
            layouts = layouts_of(arrays, self._chunk_bytes)
            with _removed_if_it_fails(temporary):
                directory = self._run(temporary.create(), clock)
                writing = Writing(str(directory), layouts, self._context, clock)
                with writing.settled(self._grace_s):
                    writing.open(create=True)
                    writing.wait_until_open()
        return str(directory)

    def write(self, directory: str, arrays: Arrays) -> int:
        """Writes the shards that this process has; see ``WeightStore``.

        Reads the metadata that ``begin`` has written and compares it. So the layouts are the same
        on all hosts, and a directory that does not exist is not made.
        """
        clock = self._clock(directory)
        with clock.errors(directory, write_error):
            pieces = {name: own_pieces(array) for name, array in arrays.items()}
            layouts = layouts_of(arrays, self._chunk_bytes)
            writing = Writing(directory, layouts, self._context, clock)
            with writing.settled(self._grace_s):
                writing.open(create=False)
                writing.wait_until_open()
            unless_abandoned = _removed_if_abandoned(epath.Path(directory), layouts)
            with unless_abandoned, writing.settled(self._grace_s):
                return writing.write(pieces)

    def commit(self, path: str, directory: str, arrays: Arrays, chunks: int) -> None:
        """Makes a version visible that is written completely; see ``WeightStore``."""
        clock = self._clock(path)
        layouts = layouts_of(arrays, self._chunk_bytes)
        expected = sum(layout.chunks for layout in layouts.values())
        if chunks != expected:
            raise WeightsError(f"cannot write {path}: {chunks} of {expected} chunks were written")
        with clock.errors(path, write_error):
            temporary = _temporary(path)
            if str(temporary.get()) != directory:
                raise WeightsError(f"cannot write {path}: its directory is not {directory}")
            _require_begun(temporary.get(), layouts)
            self._commit(temporary, layouts, clock)

    def abandon(self, path: str) -> None:
        """Removes what is left of a version that was not committed; see ``WeightStore``."""
        try:
            _temporary(path).get().rmtree(missing_ok=True)
        except IO_ERRORS as error:
            raise WeightsError(f"cannot delete the remains of {path}: {error}") from error

    def load(self, path: str, like: Arrays) -> dict[str, Any]:
        """Reads arrays with the shapes, dtypes and shardings of ``like``; see ``WeightStore``.

        Args:
          path: path that was passed to ``save``.
          like: name -> ``jax.ShapeDtypeStruct`` with a sharding or jax array, on devices of this
            process; a numpy array or a struct without sharding yields a numpy array.

        Raises:
          WeightsUnreadableError: the bytes could not be read, for any reason.
          WeightsError: truncated or damaged bytes, or other names, shapes or dtypes.
          DeadlineError: it took longer than ``deadline_s``.
        """
        clock = Clock(f"reading the weight version {path}", self._deadline_s)
        metadata = epath.Path(path) / METADATA_FILE
        with clock.errors(str(metadata), read_error):
            layouts = decode(path, metadata.read_bytes())
        _check(path, layouts, like)
        clock.nbytes = sum(nbytes_of(array) for array in like.values())

        opened: dict[str, Any] = {}
        loaded: dict[str, Any] = {}
        reads: deque[tuple[str, Pieces]] = deque()
        in_flight, caching = 0, ts.Context(self._caching)  # nothing stays in it after this load
        for name, wanted in like.items():
            with clock.errors(f"{path}: {name}", read_error):
                spec = array_spec(path, name, layouts[name])
                shares = shares_chunks(wanted, layouts[name].chunk)
                context = caching if shares else self._context
                opened[name] = ts.open(spec, open=True, assume_metadata=True, context=context)
        for name, wanted in like.items():
            with clock.errors(f"{path}: {name}", read_error):
                source = opened.pop(name).result(clock.left_s())
                pieces = Pieces(source, wanted)
            reads.append((name, pieces))
            in_flight += pieces.nbytes
            while in_flight > self._in_flight_bytes and len(reads) > 1:
                in_flight -= _finish(path, *reads.popleft(), clock, loaded)
        while reads:
            _finish(path, *reads.popleft(), clock, loaded)
        return loaded

    def delete(self, path: str) -> None:
        """Removes a version and the remains of a killed ``save``; silent if there are none."""
        try:
            # The two directories are the same on object stores.
            for directory in {epath.Path(path), _temporary(path).get()}:
                directory.rmtree(missing_ok=True)
        except IO_ERRORS as error:
            raise WeightsError(f"cannot delete {path}: {error}") from error

    def _clock(self, path: str) -> Clock:
        return Clock(f"writing the weight version {path}", self._deadline_s)

    def _commit(self, temporary: Any, layouts: dict[str, Layout], clock: Clock) -> None:
        (temporary.get() / METADATA_FILE).write_bytes(encode(layouts))
        self._run(temporary.finalize(), clock)

    def _run(self, commit: Coroutine[Any, Any, T], clock: Clock) -> T:
        if not self._loop_lock.acquire(timeout=clock.left_s()):
            commit.close()
            raise TimeoutError
        try:
            # Orbax works on threads, which go on when a wait for them is given up.
            left_s = max(clock.left_s(), self._grace_s)
            return self._loop.run_until_complete(asyncio.wait_for(commit, left_s))
        finally:
            self._loop_lock.release()


def _temporary(path: str) -> Any:
    """Orbax's object that makes a version's directory, and makes it visible."""
    final = epath.Path(path)
    return ocp.path.atomicity_defaults.get_default_temporary_path_class(final).from_final(final)


def _new(path: str) -> Any:
    """As ``_temporary``, for a version that does not exist."""
    if epath.Path(path).exists():
        raise WeightsError(f"cannot write {path}: it exists")
    return _temporary(path)


@contextmanager
def _removed_if_it_fails(temporary: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # Best effort: Orbax removes a leftover before it writes the path again.
        with suppress(OSError):
            temporary.get().rmtree(missing_ok=True)
        raise


@contextmanager
def _removed_if_abandoned(directory: epath.Path, layouts: Mapping[str, Layout]) -> Iterator[None]:
    """Removes what was written into a directory that host 0 has removed meanwhile.

    TensorStore makes a missing directory again, and host 0 does not look at it any more.
    """
    try:
        yield
    finally:
        try:
            _require_begun(directory, layouts)
        except FileNotFoundError:
            directory.rmtree(missing_ok=True)
            raise


def _require_begun(directory: epath.Path, layouts: Mapping[str, Layout]) -> None:
    """Raises a FileNotFoundError if a directory lacks the metadata that ``begin`` writes."""
    name = next(iter(layouts), None)  # one array tells: the directory is removed as a whole
    begun = directory if name is None else directory / name / ARRAY_FILE
    if not begun.exists():
        raise FileNotFoundError(errno.ENOENT, "the directory was removed", str(directory))


def _finish(path: str, name: str, pieces: Pieces, clock: Clock, loaded: dict[str, Any]) -> int:
    """Moves one array from ``pieces`` to ``loaded``; returns the host bytes that this freed."""
    with clock.errors(f"{path}: {name}", read_error):
        pieces.wait(clock)
    loaded[name] = pieces.array()
    clock.moved += pieces.nbytes
    return pieces.nbytes


def _check(path: str, layouts: dict[str, Layout], like: Arrays) -> None:
    for name in like:
        if name not in layouts:
            raise WeightsError(f"{path} has no {name!r}: {alternatives(name, layouts)}")
    if surplus := sorted(layouts.keys() - like.keys()):
        raise WeightsError(f"{path} has unexpected variables: {', '.join(surplus)}")
    for name, wanted in like.items():
        stored = layouts[name]
        expected = tuple(wanted.shape), np.dtype(wanted.dtype).name
        if expected != (stored.shape, stored.dtype):
            raise WeightsError(
                f"{path}: {name} is {stored.dtype}{list(stored.shape)}, expected "
                f"{expected[1]}{list(expected[0])}"
            )
