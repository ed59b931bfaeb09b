"""Values of many spans of tokens, written into [rows, length] arrays at once. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class Spans:
    """Consecutive tokens of rows: span n has ``counts[n]`` tokens, the first at ``starts[n]``.

    Args:
      rows: the row of each span.
      starts: position of its first token in that row.
      counts: its number of tokens, from 0. A span ends within its row, and no two overlap.
      length: positions of a row.

    Attributes:
      within: int [all tokens], place of each token in its span, from 0.
    """

    def __init__(
        self,
        rows: Sequence[int] | np.ndarray,
        starts: Sequence[int] | np.ndarray,
        counts: Sequence[int] | np.ndarray,
        length: int,
    ):
        self._counts_n = np.asarray(counts, np.int64)
        firsts_n = np.asarray(rows, np.int64) * length + np.asarray(starts, np.int64)
        before_n = np.cumsum(self._counts_n) - self._counts_n
        self.within = np.arange(self._counts_n.sum()) - np.repeat(before_n, self._counts_n)
        self._at = np.repeat(firsts_n, self._counts_n) + self.within

    def each(self, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Returns [all tokens]: at each token the value of its span."""
        return np.repeat(np.asarray(values), self._counts_n, axis=0)

    def write(self, array: np.ndarray, values: np.ndarray | float) -> None:
        """Writes a value for each token.

        Args:
          array: [rows, length] or [rows, length, k], contiguous; changed in place.
          values: [all tokens] or [all tokens, k]; or one value for all of them.
        """
        array.reshape(-1, *array.shape[2:])[self._at] = values

    def add(self, array: np.ndarray, values: np.ndarray) -> None:
        """Adds to the values that were written; see ``write``."""
        array.reshape(-1, *array.shape[2:])[self._at] += values.astype(array.dtype)
