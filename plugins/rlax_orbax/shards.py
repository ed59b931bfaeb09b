"""Arrays as pieces that are moved separately: one host buffer per distinct shard."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from rlax_orbax.blocks import Block, Bounds, blocks_of, inside
from rlax_orbax.shared_chunks import SharedChunk, SharedChunks
from rlax_orbax.time_left import Clock

Index = tuple[slice, ...]
_ALIGNMENT = 64  # bytes; XLA's CPU client takes over host buffers that are aligned so


class Pieces:
    """An array that is being read: a host buffer per distinct shard of this process.

    Each chunk is read once. Those that belong to several shards are read beside the buffers and
    copied. Buffers are aligned so that XLA's CPU client keeps them instead of copying.

    Args:
      source: the array in the store.
      wanted: shape, dtype and perhaps sharding.
      chunk: shape of the chunks.
      shared: reads the chunks that belong to several shards.
    """

    def __init__(self, source: Any, wanted: Any, chunk: tuple[int, ...], shared: SharedChunks):
        self._source = source
        self._shape, self._dtype = tuple(wanted.shape), np.dtype(wanted.dtype)
        self._sharding = getattr(wanted, "sharding", None)
        self._devices: dict[Bounds, list[Any]] = {}
        if self._sharding is None:
            self._devices[_bounds((slice(None),) * len(self._shape), self._shape)] = []
        else:
            indices = self._sharding.addressable_devices_indices_map(self._shape)
            for device, index in indices.items():
                self._devices.setdefault(_bounds(index, self._shape), []).append(device)
        self._buffers = {
            bounds: _aligned(tuple(stop - start for start, stop in bounds), self._dtype)
            for bounds in self._devices
        }
        self._pending: list[Any] = []
        self._shared, self._chunks = shared, deque[tuple[Block, SharedChunk]]()
        for block in blocks_of(tuple(self._buffers), self._shape, chunk):
            if len(block.pieces) > 1:
                self._chunks.append((block, shared.read(self._at(block))))
            else:
                self._pending.append(self._read_into_buffer(block))

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def wait(self, clock: Clock) -> None:
        """Returns once the buffers are complete; those of earlier arrays have to be."""
        for pending in self._pending:
            pending.result(clock.left_s())
        bits = f"u{self._dtype.itemsize}"  # NumPy copies dtypes that it does not know slowly
        while self._chunks:
            block, chunk = self._chunks.popleft()
            values = chunk.values(clock).view(bits)
            for piece in block.pieces:
                here, there = inside(block.bounds, piece)
                self._buffers[piece].view(bits)[there] = values[here]
            self._shared.release(chunk)

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
                self._buffers[bounds],
                jax.sharding.SingleDeviceSharding(device, memory_kind=memory),
            )
            for bounds, devices in self._devices.items()
            for device in devices
        ]
        return jax.make_array_from_single_device_arrays(self._shape, self._sharding, shards)

    def _read_into_buffer(self, block: Block) -> Any:
        (piece,) = block.pieces
        buffer = self._buffers[piece]
        if block.bounds != piece:
            buffer = buffer[inside(block.bounds, piece)[1]]
        return ts.array(buffer).write(self._at(block))

    def _at(self, block: Block) -> Any:
        """The block in the store, moved to the origin."""
        if not block.bounds:
            return self._source
        index = tuple(slice(start, stop) for start, stop in block.bounds)
        return self._source[index].translate_to[(0,) * len(index)]


def own_pieces(array: Any) -> list[tuple[Index, Any]]:
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


def _bounds(index: Index, shape: tuple[int, ...]) -> Bounds:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
