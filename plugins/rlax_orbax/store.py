"""Writes and reads versions: Orbax commits them, TensorStore moves the bytes.

Orbax's PyTree handler around the same arrays costs about 30 ms a save and 20 ms a load of a tiny
model (one task, two opens and several metadata files per array) and copies once more when it
restores. A version is published at every step, so this store keeps Orbax's directory layout and
its commit (a temporary directory that is renamed, or a commit file on object stores) and gives the
arrays to TensorStore, Orbax's own reader and writer, directly. Stock Orbax opens the result.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import jax
import numpy as np
import tensorstore as ts
from etils import epath
from orbax import checkpoint as ocp

from rlax_orbax.layout import METADATA_FILE, Layout, array_spec, chunk_shape, decode, encode
from rlax_plugin.api import (
    Arrays,
    DeadlineError,
    WeightsError,
    WeightStore,
    WeightsUnreadableError,
    WeightsUnwritableError,
    alternatives,
)

T = TypeVar("T")
Index = tuple[slice, ...]

# TensorStore and the file system report every kind of failure through these.
_IO_ERRORS = (OSError, ValueError, LookupError, NotImplementedError, OverflowError)
# TensorStore raises a ValueError for everything. Its message begins with absl's status code, unless
# that is INVALID_ARGUMENT: then the call itself was wrong. These are all that it says of bytes that
# it has read and that are not what was written; tests flip and cut every byte of a version.
_STATUS = re.compile(r"[A-Z_]+: ")
_WRONG_BYTES = re.compile(
    r"DATA_LOSS: |FAILED_PRECONDITION: .*: (Not enough data|Invalid bool value): ", re.DOTALL
)
_DEADLINE_KEY = "rlax.deadlines.weights_s"
_GRACE_S = 10.0  # for what cannot be stopped: writes under way when a save fails, and its commit
_ALIGNMENT = 64  # bytes; XLA's CPU client takes over host buffers that are aligned so


class OrbaxStore(WeightStore):
    """Weight versions as Orbax checkpoints.

    Args:
      deadline_s: for one ``save`` or ``load``.
      chunk_bytes: largest chunk where the shape allows.
      in_flight_bytes: host memory for arrays on their way to devices.
    """

    def __init__(
        self,
        *,
        deadline_s: float = 120.0,
        chunk_bytes: int = 64 << 20,
        in_flight_bytes: int = 2 << 30,
    ):
        self._deadline_s = deadline_s
        self._chunk_bytes, self._in_flight_bytes = chunk_bytes, in_flight_bytes
        # The directory becomes visible as a whole, so its files need neither a rename each nor
        # fsync: after a machine's crash a version is published anew, and checksums find a torn one.
        self._context = ts.Context(
            {"file_io_sync": False, "file_io_locking": {"mode": "non_atomic"}}
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
          DeadlineError: it took longer than ``deadline_s``, or its commit than 10 s more.
        """
        clock = _Clock(f"writing the weight version {path}", self._deadline_s)
        final = epath.Path(path)
        with clock.errors(path, _write_error):
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
          path: what was given to ``save``.
          like: name -> ``jax.ShapeDtypeStruct`` with a sharding or jax array, on devices of this
            process; a numpy array or a struct without sharding yields a numpy array.

        Raises:
          WeightsUnreadableError: the bytes could not be had, for whatever reason.
          WeightsError: truncated or damaged bytes, or other names, shapes or dtypes.
          DeadlineError: it took longer than ``deadline_s``.
        """
        clock = _Clock(f"reading the weight version {path}", self._deadline_s)
        metadata = epath.Path(path) / METADATA_FILE
        with clock.errors(str(metadata), _read_error):
            layouts = decode(path, metadata.read_bytes())
        _check(path, layouts, like)
        clock.nbytes = sum(_nbytes(array) for array in like.values())

        opened: dict[str, Any] = {}
        loaded: dict[str, Any] = {}
        reads: deque[tuple[str, _Pieces]] = deque()
        in_flight = 0
        for name in like:
            with clock.errors(f"{path}: {name}", _read_error):
                spec = array_spec(path, name, layouts[name])
                opened[name] = ts.open(spec, open=True, assume_metadata=True, context=self._context)
        for name, wanted in like.items():
            with clock.errors(f"{path}: {name}", _read_error):
                pieces = _Pieces(opened.pop(name).result(clock.left_s()), wanted)
            reads.append((name, pieces))
            in_flight += pieces.nbytes
            while in_flight > self._in_flight_bytes and len(reads) > 1:
                in_flight -= _finish(path, *reads.popleft(), clock, loaded)
        while reads:
            _finish(path, *reads.popleft(), clock, loaded)
        return loaded

    def delete(self, path: str) -> None:
        """Removes a version and what a killed ``save`` of it has left; silent if it is gone."""
        final = epath.Path(path)
        try:
            kind = ocp.path.atomicity_defaults.get_default_temporary_path_class(final)
            for directory in {final, kind.from_final(final).get()}:  # the same on object stores
                directory.rmtree(missing_ok=True)
        except _IO_ERRORS as error:
            raise WeightsError(f"cannot delete {path}: {error}") from error

    def _layout(self, array: Any) -> Layout:
        shape = tuple(array.shape)
        shard = array.sharding.shard_shape(shape) if isinstance(array, jax.Array) else shape
        chunk = chunk_shape(tuple(shard), array.dtype.itemsize, self._chunk_bytes)
        return Layout(shape, np.dtype(array.dtype).name, chunk)

    def _write(
        self, directory: str, arrays: Arrays, layouts: dict[str, Layout], clock: _Clock
    ) -> None:
        opened: list[Any] = []
        writes: list[tuple[int, Any]] = []
        try:
            for name, layout in layouts.items():
                spec = array_spec(directory, name, layout)
                opened.append(ts.open(spec, open=True, create=True, context=self._context))
            for target, array in zip(opened, arrays.values(), strict=True):
                store = target.result(clock.left_s())
                for index, piece in _host_pieces(array):
                    # The buffers are fresh and nobody writes to them: no copy is needed.
                    write = store[index].write(piece, can_reference_source_data_indefinitely=True)
                    writes.append((piece.nbytes, write))
            clock.nbytes = sum(map(_nbytes, arrays.values()))
            for nbytes, write in writes:
                write.result(clock.left_s())
                clock.moved += nbytes
        except BaseException:
            # What is under way would put files back into the directory that is now removed.
            grace = _Clock("", _GRACE_S)
            for future in (*opened, *(write for _, write in writes)):
                with suppress(TimeoutError):
                    future.exception(max(clock.left_s(), grace.left_s()))
            raise

    def _run(self, commit: Coroutine[Any, Any, T], clock: _Clock) -> T:
        if not self._loop_lock.acquire(timeout=clock.left_s()):
            commit.close()
            raise TimeoutError
        try:
            # Orbax works on threads, which go on when a wait for them is given up.
            left_s = max(clock.left_s(), _GRACE_S)
            return self._loop.run_until_complete(asyncio.wait_for(commit, left_s))
        finally:
            self._loop_lock.release()


class _Clock:
    """Time left for one operation.

    Attributes:
      nbytes: how much it has to move; 0: not known yet.
      moved: how much of it is done.
    """

    def __init__(self, what: str, deadline_s: float):
        self._what, self._deadline_s = what, deadline_s
        self._end = time.monotonic() + deadline_s
        self.nbytes = self.moved = 0

    def left_s(self) -> float:
        """Seconds that a wait may still take; 0 makes it fail at once unless it is over."""
        return max(0.0, self._end - time.monotonic())

    def _late(self) -> DeadlineError:
        what = self._what
        if self.nbytes:
            what += f", of which {self.moved / 1e6:.3g} of {self.nbytes / 1e6:.3g} MB were moved,"
        needed_s = self._deadline_s * self.nbytes / self.moved if self.moved else None
        return DeadlineError(what, self._deadline_s, _DEADLINE_KEY, needed_s)

    @contextmanager
    def errors(
        self, what: str, translated: Callable[[str, Exception], WeightsError]
    ) -> Iterator[None]:
        """Makes an overrun a ``DeadlineError``, and a failing file what ``translated`` returns."""
        try:
            yield
        except _IO_ERRORS as error:
            # A time-out of the file system or the network has a number; one of ours has none.
            if isinstance(error, TimeoutError) and error.errno is None:
                raise self._late() from error
            raise translated(what, error) from error


def _read_error(what: str, error: Exception) -> WeightsError:
    """Wrong bytes are known as such. Everything else, also what is unknown, may pass."""
    if _WRONG_BYTES.match(str(error)):
        return WeightsError(f"{what} is damaged: {error}")
    return WeightsUnreadableError(f"{what} cannot be read: {error}")


def _write_error(what: str, error: Exception) -> WeightsError:
    """What TensorStore rejects to begin with would be rejected again."""
    passing = isinstance(error, OSError) or _STATUS.match(str(error))
    kind = WeightsUnwritableError if passing else WeightsError
    return kind(f"cannot write {what}: {error}")


class _Pieces:
    """One array on its way in: a host buffer and a pending read per distinct shard.

    Buffers are aligned so that XLA's CPU client keeps them instead of copying.
    """

    def __init__(self, source: Any, wanted: Any):
        self._shape, self._dtype = tuple(wanted.shape), np.dtype(wanted.dtype)
        self._sharding = getattr(wanted, "sharding", None)
        self._devices: dict[tuple[tuple[int, int], ...], list[Any]] = {}
        if self._sharding is None:
            self._devices[_bounds((slice(None),) * len(self._shape), self._shape)] = []
        else:
            indices = self._sharding.addressable_devices_indices_map(self._shape)
            for device, index in indices.items():
                self._devices.setdefault(_bounds(index, self._shape), []).append(device)
        self._buffers, self._pending = [], []
        for bounds in self._devices:
            buffer = _aligned(tuple(stop - start for start, stop in bounds), self._dtype)
            index = tuple(slice(start, stop) for start, stop in bounds)
            target = ts.array(buffer)
            piece = source[index].translate_to[(0,) * len(bounds)] if bounds else source
            self._buffers.append(buffer)
            self._pending.append(target.write(piece))

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers)

    def wait(self, clock: _Clock) -> None:
        for pending in self._pending:
            pending.result(clock.left_s())

    def array(self) -> Any:
        """The finished array; host buffers are given away."""
        if self._sharding is None:
            return self._buffers[0]
        if len(self._sharding.device_set) == 1:
            return jax.device_put(self._buffers[0], self._sharding)
        memory = self._sharding.memory_kind
        shards = [
            jax.device_put(buffer, jax.sharding.SingleDeviceSharding(device, memory_kind=memory))
            for buffer, devices in zip(self._buffers, self._devices.values(), strict=True)
            for device in devices
        ]
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)


def _finish(path: str, name: str, pieces: _Pieces, clock: _Clock, loaded: dict[str, Any]) -> int:
    """Moves one array from ``pieces`` to ``loaded``; returns the host bytes that this freed."""
    with clock.errors(f"{path}: {name}", _read_error):
        pieces.wait(clock)
    loaded[name] = pieces.array()
    clock.moved += pieces.nbytes
    return pieces.nbytes


def _check(path: str, layouts: dict[str, Layout], like: Arrays) -> None:
    for name in like:
        if name not in layouts:
            raise WeightsError(f"{path} has no {name!r}: {alternatives(name, layouts)}")
    if surplus := sorted(layouts.keys() - like.keys()):
        raise WeightsError(f"{path} has variables that were not asked for: {', '.join(surplus)}")
    for name, wanted in like.items():
        stored = layouts[name]
        expected = tuple(wanted.shape), np.dtype(wanted.dtype).name
        if expected != (stored.shape, stored.dtype):
            raise WeightsError(
                f"{path}: {name} is {stored.dtype}{list(stored.shape)}, expected "
                f"{expected[1]}{list(expected[0])}"
            )


def _host_pieces(array: Any) -> Iterator[tuple[Index, np.ndarray]]:
    """Every element once: the first replica of each shard."""
    if not isinstance(array, jax.Array):
        yield (slice(None),) * array.ndim, np.asarray(array)
        return
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            yield shard.index, np.asarray(shard.data)


def _nbytes(array: Any) -> int:
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _bounds(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
