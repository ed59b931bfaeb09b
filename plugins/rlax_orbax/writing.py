"""Writes the chunks of arrays with TensorStore: all of a version, or those of one host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import jax
import numpy as np
import tensorstore as ts

from rlax_orbax.layout import Layout, array_spec, chunk_shape, chunks_in
from rlax_orbax.shards import Index
from rlax_orbax.time_left import Clock
from rlax_plugin.api import Arrays

Pieces = Mapping[str, list[tuple[Index, Any]]]  # of each array, see ``own_pieces``


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

    def write(self, pieces: Pieces) -> int:
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
