"""Reads of chunks that belong to several pieces of an array, into memory beside their buffers."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import tensorstore as ts

from rlax_orbax.time_left import Clock


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

    The memory is used again: with fresh memory for each chunk, reading took half as long again.

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
