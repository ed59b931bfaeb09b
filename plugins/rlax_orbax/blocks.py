"""Divides the reading of an array into blocks, so that a process reads no chunk twice.

TensorStore reads a chunk as a whole, even for a part of it, because its checksum is that of the
whole chunk. So a block consists of whole chunks, unless the process needs nothing of the rest.
A block that lies in one piece of the process is read directly into the buffer of that piece. A
chunk that lies in several pieces is a block of its own, which is copied to each of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Bounds = tuple[tuple[int, int], ...]  # (start, stop) along each axis
Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A part of an array that is read at once.

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
