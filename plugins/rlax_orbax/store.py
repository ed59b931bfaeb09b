"""Writes and reads versions: Orbax commits them, TensorStore moves the bytes.

Orbax's PyTree handler around the same arrays costs about 30 ms a save and 20 ms a load of a tiny
model (one task, two opens and several metadata files per array) and copies once more when it
restores. A version is published at every step, so this store keeps Orbax's directory layout and
its commit (a temporary directory that is renamed, or a commit file on object stores) and gives the
arrays to TensorStore, Orbax's own reader and writer, directly. Stock Orbax opens the result.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

import jax
import numpy as np
import tensorstore as ts
from etils import epath
from orbax import checkpoint as ocp

from rlax_orbax.layout import METADATA_FILE, Layout, array_spec, chunk_shape, decode, encode
from rlax_orbax.shards import Pieces, host_pieces, nbytes_of
from rlax_orbax.time_left import IO_ERRORS, Clock, read_error, write_error
from rlax_plugin.api import (
    Arrays,
    WeightsError,
    WeightStore,
    alternatives,
)

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
        self._context = ts.Context(
            {"file_io_sync": False, "file_io_locking": {"mode": "non_atomic"}} | dict(context)
        )
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
        clock = Clock(f"writing the weight version {path}", self._deadline_s)
        final = epath.Path(path)
        with clock.errors(path, write_error):
            if final.exists():
                raise WeightsError(f"cannot write {path}: it exists")
            for array in arrays.values():
                if isinstance(array, jax.Array):
                    array.copy_to_host_async()
            layouts = {name: self._layout(array) for name, array in arrays.items()}
            kind = ocp.path.atomicity_defaults.get_default_temporary_path_class(final)
            temporary = kind.from_final(final)
            written = False
            try:
                directory = self._run(temporary.create(), clock)
                self._write(str(directory), arrays, layouts, clock)
                (directory / METADATA_FILE).write_bytes(encode(layouts))
                self._run(temporary.finalize(), clock)
                written = True
            finally:
                if not written:
                    # Best effort: Orbax removes a leftover before it writes the path again.
                    with suppress(OSError):
                        temporary.get().rmtree(missing_ok=True)

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
        in_flight = 0
        for name in like:
            with clock.errors(f"{path}: {name}", read_error):
                spec = array_spec(path, name, layouts[name])
                opened[name] = ts.open(spec, open=True, assume_metadata=True, context=self._context)
        for name, wanted in like.items():
            with clock.errors(f"{path}: {name}", read_error):
                pieces = Pieces(opened.pop(name).result(clock.left_s()), wanted)
            reads.append((name, pieces))
            in_flight += pieces.nbytes
            while in_flight > self._in_flight_bytes and len(reads) > 1:
                in_flight -= _finish(path, *reads.popleft(), clock, loaded)
        while reads:
            _finish(path, *reads.popleft(), clock, loaded)
        return loaded

    def delete(self, path: str) -> None:
        """Removes a version and the remains of a killed ``save``; silent if there are none."""
        final = epath.Path(path)
        try:
            kind = ocp.path.atomicity_defaults.get_default_temporary_path_class(final)
            for directory in {final, kind.from_final(final).get()}:  # the same on object stores
                directory.rmtree(missing_ok=True)
        except IO_ERRORS as error:
            raise WeightsError(f"cannot delete {path}: {error}") from error

    def _layout(self, array: Any) -> Layout:
        shape = tuple(array.shape)
        shard = array.sharding.shard_shape(shape) if isinstance(array, jax.Array) else shape
        chunk = chunk_shape(tuple(shard), array.dtype.itemsize, self._chunk_bytes)
        return Layout(shape, np.dtype(array.dtype).name, chunk)

    def _write(
        self, directory: str, arrays: Arrays, layouts: dict[str, Layout], clock: Clock
    ) -> None:
        opened: list[Any] = []
        writes: list[tuple[int, Any]] = []
        try:
            for name, layout in layouts.items():
                spec = array_spec(directory, name, layout)
                opened.append(ts.open(spec, open=True, create=True, context=self._context))
            for target, array in zip(opened, arrays.values(), strict=True):
                store = target.result(clock.left_s())
                for index, piece in host_pieces(array):
                    # The buffers are fresh and nobody writes to them: no copy is needed.
                    write = store[index].write(piece, can_reference_source_data_indefinitely=True)
                    writes.append((piece.nbytes, write))
            clock.nbytes = sum(map(nbytes_of, arrays.values()))
            for nbytes, write in writes:
                write.result(clock.left_s())
                clock.moved += nbytes
        except BaseException:
            # What is under way would put files back into the directory that is now removed.
            grace = Clock("", self._grace_s)
            for future in (*opened, *(write for _, write in writes)):
                with suppress(TimeoutError):
                    future.exception(max(clock.left_s(), grace.left_s()))
            raise

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
