"""Arrays as pieces that are moved separately: what a process reads and writes of each.

A process reads no chunk twice: TensorStore reads a chunk as a whole, even for a slice of it,
because its checksum is that of the whole chunk. So a block consists of whole chunks, unless the
process needs nothing of the rest. A block that lies in one piece of the process is read directly
into the buffer of that piece. A chunk that lies in several pieces is a block of its own, which is
copied to each of them.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Block:
    """A region of an array that is read at once.

    Attributes:
      bounds: its place in the array.
      pieces: the pieces of which it contains elements. If there is only one, it contains all of
        the block.
    """

    bounds: Bounds
    pieces: tuple[Bounds, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.bounds)


def size_of(bounds: Bounds) -> int:
    """Number of elements."""
    return math.prod(stop - start for start, stop in bounds)


def blocks_of(
    pieces: Sequence[Bounds], shape: tuple[int, ...], chunk: tuple[int, ...]
) -> list[Block]:
    """Blocks that cover the given pieces of an array, in the order of their bounds.

    Args:
      pieces: bounds of the pieces; no two of them have an element in common.
      chunk: shape of the chunks.
    """
    if len(pieces) == 1:
        return [Block(pieces[0], tuple(pieces))]
    segments = [
        _segments([piece[axis] for piece in pieces], length, chunk[axis])
        for axis, length in enumerate(shape)
    ]
    blocks = []
    for bounds in itertools.product(*segments):
        found = tuple(piece for piece in pieces if _common(bounds, piece) is not None)
        if len(found) == 1 and _common(bounds, found[0]) == bounds:
            blocks.append(Block(bounds, found))
        elif found:
            blocks += _chunks(bounds, found, chunk)
    return blocks


def inside(part: Bounds, whole: Bounds) -> tuple[Slices, Slices]:
    """Indices of the elements that two bounds have in common: in the first, and in the second."""
    first, second = (
        tuple(
            slice(max(a, c) - start, min(b, d) - start)
            for (a, b), (c, d), (start, _) in zip(part, whole, one, strict=True)
        )
        for one in (part, whole)
    )
    return first, second


def _segments(intervals: list[tuple[int, int]], length: int, chunk: int) -> list[tuple[int, int]]:
    """Cuts an axis at the ends of all pieces, or around the chunk in which such an end lies."""
    cuts = {0, length}
    for end in itertools.chain.from_iterable(intervals):
        start = end // chunk * chunk
        cuts |= {start, min(length, start + chunk)} if start < end < length else {end}
    return list(itertools.pairwise(sorted(cuts)))


def _chunks(bounds: Bounds, pieces: Sequence[Bounds], chunk: tuple[int, ...]) -> Iterator[Block]:
    """The chunks of a region, without what belongs to no piece."""
    axes = [
        [(start, min(stop, start + c)) for start in range(first, stop, c)]
        for (first, stop), c in zip(bounds, chunk, strict=True)
    ]
    for cell in itertools.product(*axes):
        parts = {piece: common for piece in pieces if (common := _common(cell, piece)) is not None}
        if not parts:
            continue
        needed = tuple(
            (min(start for start, _ in along), max(stop for _, stop in along))
            for along in zip(*parts.values(), strict=True)
        )
        yield Block(needed, tuple(parts))


def _common(one: Bounds, other: Bounds) -> Bounds | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


class SharedChunk:
    """One read. It begins once there is memory for it."""

    def __init__(self, source: Any):
        self._source, self._dtype = source, source.dtype.numpy_dtype
        self.nbytes = int(np.prod(source.shape)) * self._dtype.itemsize
        self.memory = np.empty(0, np.uint8)
        self._pending: Any = None

    def begin(self, memory: np.ndarray) -> None:
        """Begins to read into memory, uint8 and at least ``nbytes`` long."""
        self.memory = memory
        values = memory[: self.nbytes].view(self._dtype).reshape(self._source.shape)
        self._pending = ts.array(values).write(self._source)
        self._values = values

    def values(self, clock: Clock) -> np.ndarray:
        """The elements that were read; waits for them."""
        self._pending.result(clock.left_s())
        return self._values


class SharedChunks:
    """Such reads of all arrays of a version, in order, a few at a time.

    The memory is used again, because the first access to fresh memory is slow.

    Attributes:
      held_bytes: the memory that is in use, or is kept for the next reads.

    Args:
      limit_bytes: largest amount of memory, unless a single chunk needs more.
    """

    def __init__(self, limit_bytes: int):
        self._limit_bytes, self.held_bytes = limit_bytes, 0
        self._used_bytes = 0
        self._free: list[np.ndarray] = []
        self._waiting: deque[SharedChunk] = deque()

    def read(self, source: Any) -> SharedChunk:
        """Reads a part of an array, now or after those before it."""
        chunk = SharedChunk(source)
        self._waiting.append(chunk)
        self._begin()
        return chunk

    def release(self, chunk: SharedChunk) -> None:
        """Takes back the memory of a read whose values are no longer needed."""
        self._used_bytes -= chunk.memory.nbytes
        self._free.append(chunk.memory)
        self._begin()

    def _begin(self) -> None:
        while self._waiting:
            nbytes = self._waiting[0].nbytes
            fitting = [memory for memory in self._free if memory.nbytes >= nbytes]
            if fitting:
                memory = min(fitting, key=lambda one: one.nbytes)
                self._free = [one for one in self._free if one is not memory]
            else:
                while self._free and self.held_bytes + nbytes > self._limit_bytes:
                    self.held_bytes -= self._free.pop().nbytes
                if self._used_bytes and self.held_bytes + nbytes > self._limit_bytes:
                    return
                memory = np.empty(nbytes, np.uint8)
                self.held_bytes += nbytes
            self._used_bytes += memory.nbytes
            self._waiting.popleft().begin(memory)


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
