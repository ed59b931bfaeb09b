"""What an array of a training batch is, without its contents."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a batch, [rows, length, *trailing].

    Attributes:
      dtype: of its numbers.
      trailing: axes behind the positions: () for one number per position, (layers, k) for the
        experts of a token in each layer.
    """

    dtype: np.dtype
    trailing: tuple[int, ...] = ()

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Of a batch of ``rows`` rows with ``length`` positions each."""
        return (rows, length, *self.trailing)

    def zeros(self, rows: int, length: int) -> np.ndarray:
        """An array of this kind in which nothing is laid out."""
        return np.zeros(self.shape(rows, length), self.dtype)

    @property
    def bytes_per_position(self) -> int:
        return self.dtype.itemsize * math.prod(self.trailing)

    def mismatch(self, array: np.ndarray | None, rows: int, length: int) -> str:
        """What an array is instead of this; empty if it is this."""
        shape = self.shape(rows, length)
        if array is None:
            found = "nothing"
        elif array.shape == shape and array.dtype == self.dtype:
            return ""
        else:
            found = f"{array.dtype}{list(array.shape)}"
        return f"{found}, expected {self.dtype}{list(shape)}"
