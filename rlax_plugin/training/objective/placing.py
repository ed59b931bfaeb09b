"""Places sequences of tokens in the rows of a batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def place(
    sizes: Sequence[int], rows: int, length: int, sequences_per_row: int
) -> list[tuple[int, int, int]] | None:
    """Places every sequence undivided in a row: first-fit decreasing, equal ones in order.

    The first row with room takes a sequence, the longest first. With one sequence per row the order
    does not matter: sequence i lies in row i.

    Args:
      sizes: positions of each sequence, from 1.
      rows: number of rows.
      length: positions of a row.
      sequences_per_row: largest number of sequences in one row.

    Returns:
      (row, first position, segment) of each sequence in the order of ``sizes``; segments count
      from 1 in each row. None if they do not fit.
    """
    if sequences_per_row == 1:
        if len(sizes) > rows or max(sizes, default=0) > length:
            return None
        return [(row, 0, 1) for row in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda sample: -sizes[sample])  # a stable sort
    rooms = _Rooms(rows, length)
    held_b = [0] * rows  # samples
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(sizes)
    for sample in order:
        row = rooms.first(size := sizes[sample])
        if row is None:
            return None
        held_b[row] += 1
        room = rooms.of(row)
        places[sample] = (row, length - room, held_b[row])
        rooms.set(row, room - size if held_b[row] < sequences_per_row else _FULL)
    return places


_FULL = -sys.maxsize  # the room of a row with all of its samples


class _Rooms:
    """Free positions of rows, in a tree of maxima: the first row with room is found in log time."""

    def __init__(self, rows: int, length: int):
        self._leaves = 1 << max(0, rows - 1).bit_length()
        self._tree = [length] * (self._leaves + rows) + [_FULL] * (self._leaves - rows)
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node : 2 * node + 2])

    def of(self, row: int) -> int:
        return self._tree[self._leaves + row]

    def first(self, size: int) -> int | None:
        """Returns the first row with ``size`` free positions; None if no row has them."""
        tree, node = self._tree, 1
        if tree[node] < size:
            return None
        while node < self._leaves:
            node *= 2
            if tree[node] < size:
                node += 1
        return node - self._leaves

    def set(self, row: int, room: int) -> None:
        tree, node = self._tree, self._leaves + row
        tree[node] = room
        while node > 1:
            node //= 2
            largest = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == largest:
                return
            tree[node] = largest
