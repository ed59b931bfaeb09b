"""Arrays as pieces that are moved separately: what a process reads and writes of each.

TensorStore reads a chunk as a whole, even for a slice of it, because its checksum is that of the
whole chunk. Where a chunk lies in several pieces of the process, a cache keeps it until all of them
have their part, so that it is read once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from rlax_orbax.layout import Layout, array_spec, chunk_shape, chunks_in
from rlax_orbax.time_left import Clock
from rlax_plugin.api import Arrays

Bounds = tuple[tuple[int, int], ...]  # (start, stop) along each axis
Slices = tuple[slice, ...]
OwnPieces = Mapping[str, list[tuple[Slices, Any]]]  # of each array, see ``own_pieces``

_ALIGNMENT = 64  # bytes; XLA's CPU client takes over host buffers that are aligned so


class Pieces:
    """An array that is being read: a host buffer per distinct shard of this process.

    All reads begin at once, so that TensorStore reads a chunk that belongs to several shards once,
    and copies it from its cache. Buffers are aligned so that XLA's CPU client keeps them instead of
    copying.

    Args:
      source: the array in the store.
      wanted: shape, dtype and perhaps sharding.
    """

    def __init__(self, source: Any, wanted: Any):
        self._shape, self._dtype = tuple(wanted.shape), np.dtype(wanted.dtype)
        self._sharding = getattr(wanted, "sharding", None)
        self._devices = _devices_of(wanted)
        self._buffers = {
            bounds: _aligned(tuple(stop - start for start, stop in bounds), self._dtype)
            for bounds in self._devices
        }
        self._pending = [
            ts.array(buffer).write(_at_origin(source, bounds))
            for bounds, buffer in self._buffers.items()
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def wait(self, clock: Clock) -> None:
        """Returns once the buffers are complete."""
        for pending in self._pending:
            pending.result(clock.left_s())

    def array(self) -> Any:
        """The finished array, which takes over the host buffers."""
        if self._sharding is None:
            (buffer,) = self._buffers.values()
            return buffer
        if len(self._sharding.device_set) == 1:
            (buffer,) = self._buffers.values()
            return jax.device_put(buffer, self._sharding)
        memory = self._sharding.memory_kind
        shards = [
            jax.device_put(
                self._buffers[bounds], jax.sharding.SingleDeviceSharding(device, memory_kind=memory)
            )
            for bounds, devices in self._devices.items()
            for device in devices
        ]
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)


def shares_chunks(wanted: Any, chunk: tuple[int, ...]) -> bool:
    """True if a chunk of an array may belong to several shards of this process."""
    devices = _devices_of(wanted)
    return len(devices) > 1 and any(
        start % size or (stop % size and stop != length)
        for bounds in devices
        for (start, stop), size, length in zip(bounds, chunk, wanted.shape, strict=True)
    )


def _devices_of(wanted: Any) -> dict[Bounds, list[Any]]:
    """The distinct shards of this process, with the devices that have each."""
    shape, sharding = tuple(wanted.shape), getattr(wanted, "sharding", None)
    if sharding is None:
        return {_bounds((slice(None),) * len(shape), shape): []}
    devices: dict[Bounds, list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        devices.setdefault(_bounds(index, shape), []).append(device)
    return devices


def _at_origin(source: Any, bounds: Bounds) -> Any:
    """A part of an array in the store, moved to the origin."""
    if not bounds:
        return source
    index = tuple(slice(start, stop) for start, stop in bounds)
    return source[index].translate_to[(0,) * len(index)]


def own_pieces(array: Any) -> list[tuple[Slices, Any]]:
    """The pieces that this process writes: the first replica of each shard.

    The processes that hold an array together write every element once. Begins to copy the pieces
    from the devices.
    """
    if not isinstance(array, jax.Array):
        return [((slice(None),) * array.ndim, array)]
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    for shard in shards:
        shard.data.copy_to_host_async()
    return [(shard.index, shard.data) for shard in shards]


def nbytes_of(array: Any) -> int:
    return math.prod(array.shape) * np.dtype(array.dtype).itemsize


def _bounds(index: Slices, shape: tuple[int, ...]) -> Bounds:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def layouts_of(arrays: Arrays, chunk_bytes: int) -> dict[str, Layout]:
    """Layouts of arrays, from their global shapes and shardings: the same on every host."""
    return {name: _layout(array, chunk_bytes) for name, array in arrays.items()}


def _layout(array: Any, chunk_bytes: int) -> Layout:
    shape = tuple(array.shape)
    shard = array.sharding.shard_shape(shape) if isinstance(array, jax.Array) else shape
    chunk = chunk_shape(tuple(shard), array.dtype.itemsize, chunk_bytes)
    return Layout(shape, np.dtype(array.dtype).name, chunk)


class Writing:
    """The arrays of one directory into which this process writes."""

    def __init__(self, directory: str, layouts: Mapping[str, Layout], context: Any, clock: Clock):
        self._directory, self._layouts = directory, layouts
        self._context, self._clock = context, clock
        self._opened: dict[str, Any] = {}
        self._writes: list[tuple[int, Any]] = []

    def open(self, *, create: bool) -> None:
        """Begins to open all arrays.

        Args:
          create: True to write the metadata of arrays that are not there; else opening them fails.
        """
        for name, layout in self._layouts.items():
            spec = array_spec(self._directory, name, layout)
            self._opened[name] = ts.open(spec, open=True, create=create, context=self._context)

    def wait_until_open(self) -> None:
        """Returns once all arrays are open, so that their metadata is there."""
        for target in self._opened.values():
            target.result(self._clock.left_s())

    def write(self, pieces: OwnPieces) -> int:
        """Writes pieces of the arrays; returns the number of chunks once they are there."""
        chunks = 0
        for name, target in self._opened.items():
            store = target.result(self._clock.left_s())
            for index, data in pieces[name]:
                piece = np.asarray(data)
                # The buffers are fresh and nobody writes to them: no copy is needed.
                write = store[index].write(piece, can_reference_source_data_indefinitely=True)
                self._writes.append((piece.nbytes, write))
                chunks += chunks_in(piece.shape, self._layouts[name].chunk)
        self._clock.nbytes = sum(nbytes for nbytes, _ in self._writes)
        for nbytes, write in self._writes:
            write.result(self._clock.left_s())
            self._clock.moved += nbytes
        return chunks

    @contextmanager
    def settled(self, grace_s: float) -> Iterator[None]:
        """If the block fails, waits for what it has begun, until the deadline or for ``grace_s``.

        What is under way would put files back into a directory that is then removed.
        """
        try:
            yield
        except BaseException:
            grace = Clock("", grace_s)
            for future in (*self._opened.values(), *(write for _, write in self._writes)):
                with suppress(TimeoutError):
                    future.exception(max(self._clock.left_s(), grace.left_s()))
            raise
