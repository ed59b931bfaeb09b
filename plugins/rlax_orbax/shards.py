"""Arrays as pieces that are moved separately: one host buffer per distinct shard."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from rlax_orbax.time_left import Clock

Index = tuple[slice, ...]
_ALIGNMENT = 64  # bytes; XLA's CPU client takes over host buffers that are aligned so


class Pieces:
    """An array that is being read: a host buffer and a pending read per distinct shard.

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

    def wait(self, clock: Clock) -> None:
        for pending in self._pending:
            pending.result(clock.left_s())

    def array(self) -> Any:
        """The finished array, which takes over the host buffers."""
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


def _bounds(index: Index, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
