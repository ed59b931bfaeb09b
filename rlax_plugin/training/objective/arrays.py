"""Describes the arrays of a training batch without their contents."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a batch, [rows, length, *trailing].

    Attributes:
      dtype: dtype of its numbers.
      trailing: axes after the positions: () for one number per position, (layers, k) for the
        experts of a token in each layer.
    """

    dtype: np.dtype
    trailing: tuple[int, ...] = ()

    def shape(self, rows: int, length: int) -> tuple[int, ...]:
        """Returns the shape for a batch of ``rows`` rows with ``length`` positions each."""
        return (rows, length, *self.trailing)

    def zeros(self, rows: int, length: int) -> np.ndarray:
        """Returns an array of this kind filled with zeros."""
        return np.zeros(self.shape(rows, length), self.dtype)

    @property
    def bytes_per_position(self) -> int:
        return self.dtype.itemsize * math.prod(self.trailing)

    def mismatch(self, array: np.ndarray | None, rows: int, length: int) -> str:
        """Describes how an array differs from this specification; empty if it does not."""
        shape = self.shape(rows, length)
        if array is None:
            found = "nothing"
        elif array.shape == shape and array.dtype == self.dtype:
            return ""
        else:
            found = f"{array.dtype}{list(array.shape)}"
        return f"{found}, expected {self.dtype}{list(shape)}"
