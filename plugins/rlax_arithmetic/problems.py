"""Defines the problems of each split as a pure function of the options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

Operation = Literal["add", "multiply"]
SPLITS = ("train", "validation", "test")
_SYMBOLS: dict[Operation, tuple[str, Callable[[int, int], int]]] = {
    "add": ("+", lambda a, b: a + b),
    "multiply": ("*", lambda a, b: a * b),
}


@dataclass(frozen=True, slots=True)
class ProblemSet:
    """The kind of problems, and the number of problems in each split.

    Attributes:
      digits: decimal digits of both operands, without leading zeros (2: 10 .. 99).
      operation: operation on the operands.
      test, validation: numbers of problems in these splits; one more if a mirrored pair would be
        divided.
      train: largest number of problems in the training split.
    """

    digits: int = 2
    operation: Operation = "add"
    test: int = 1000
    validation: int = 1000
    train: int = 20_000

    @property
    def total(self) -> int:
        """The number of problems with operands of this length."""
        return (9 * 10 ** (self.digits - 1)) ** 2

    @property
    def name(self) -> str:
        """The name of the content: equal names mean equal data."""
        return (
            f"{self.operation}-{self.digits}d-{self.test}test-{self.validation}validation"
            f"-{self.train}train"
        )

    def split(self, split: str) -> Iterator[tuple[str, str]]:
        """Yields (question, answer) of every problem of a split, in its fixed order."""
        symbol, compute = _SYMBOLS[self.operation]
        for a, b in operands(self)[split].tolist():
            yield f"{a}{symbol}{b}=", str(compute(a, b))


def operands(problems: ProblemSet) -> dict[str, np.ndarray]:
    """Divides all pairs of operands among the splits.

    ``a, b`` and ``b, a`` have the same answer, so both go to one split: the mirror image of a
    held-out problem is never trained on. The order is that of a hash (SplitMix64), not of numpy's
    generators, whose streams may change between releases.

    Args:
      problems: the problem set.

    Returns:
      split -> int64 [problems, 2].

    Raises:
      ValueError: the held-out splits leave no problems for training.
    """
    low, high = 10 ** (problems.digits - 1), 10**problems.digits
    values = np.arange(low, high, dtype=np.uint64)
    a, b = (grid.ravel() for grid in np.meshgrid(values, values, indexing="ij"))
    shift = np.uint64(32)
    pair = _mix((np.minimum(a, b) << shift) | np.maximum(a, b))
    own = _mix(~((a << shift) | b))
    order = np.lexsort((own, pair))  # mirror images are neighbours

    def cut(at: int) -> int:
        inside = 0 < at < order.size
        return at + 1 if inside and pair[order[at]] == pair[order[at - 1]] else at

    test_end = cut(problems.test)
    validation_end = cut(test_end + problems.validation)
    if validation_end >= order.size:
        raise ValueError(
            f"{problems.test} test and {problems.validation} validation problems leave none of "
            f"the {problems.total} problems to train on"
        )

    def take(part: np.ndarray) -> np.ndarray:
        part = part[np.argsort(own[part])]
        return np.stack([a[part], b[part]], axis=1).astype(np.int64)

    return {
        "train": take(order[validation_end:])[: problems.train],
        "validation": take(order[test_end:validation_end]),
        "test": take(order[:test_end]),
    }


def _mix(x: np.ndarray) -> np.ndarray:
    """Returns the SplitMix64 hash of uint64 [n] (Steele, Lea and Flood, 2014), a bijection."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
