"""Compares the logits that transformers and MaxText compute.

Both compute in float32, and differ by rounding only: by about 2e-5 at the first positions where
logits are a few nats. Both round the frequencies of rotary positions, each in its own way, and an
angle is a position times a frequency. So the difference grows with the position, to 1e-4 at 500,
7e-4 at 4000 and 2e-3 at 8000 in the worst of 21 models. ``TOLERANCE`` is accepted up to position
``EXACT_TO``, and grows in proportion beyond.

Rounding also adds up over layers: with 16 layers and a width of 1024, 1.5e-4 were found. There
transformers differed from itself by 1.2e-4, between all tokens at once and one by one. So a larger
model gets ``ROUNDINGS`` times the difference of transformers from itself, up to ``MOST``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

TOLERANCE, EXACT_TO = 2e-4, 128
"""Largest accepted difference of two float32 logits, in nats, and its last position."""

ROUNDINGS, MOST = 4, 2e-3


def tolerance(rounding: float) -> float:
    """Returns the tolerance for a model for which transformers' own ``rounding`` was measured."""
    return max(TOLERANCE, min(ROUNDINGS * rounding, MOST))


Computes = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""(tokens, at, positions) -> float32 [len(at), vocabulary]: see ``forward.Forward``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A row of tokens, and the logits that transformers computes for it.

    Attributes:
      tokens: [n].
      positions: [n] rotary positions of the tokens; None: 0, 1, 2, ...
      at: [k] positions in the row.
      logits: [k, vocabulary].
      answer: number of tokens at the end that are the greedy answer to those before.
    """

    tokens: np.ndarray
    positions: np.ndarray | None = None
    at: np.ndarray
    logits: np.ndarray
    answer: int = 0


@dataclass(slots=True)
class Agreement:
    """The agreement of two computations over all rows.

    Attributes:
      tolerance: accepted difference of two logits at the first positions.
      largest: largest difference found.
      share: largest ratio of a difference to the one accepted at its position.
      places: number of positions where logits were compared.
      best: number of these positions with the same best token.
      tokens: number of tokens of greedy answers.
      greedy: number of these tokens that are best here too.
      tied: positions where another token is best, by no more than two logits may differ.
    """

    tolerance: float = TOLERANCE
    largest: float = 0.0
    share: float = 0.0
    places: int = 0
    best: int = 0
    tokens: int = 0
    greedy: int = 0
    tied: int = 0

    def add(self, expected: Expected, forward: Computes) -> None:
        """Runs ``forward`` on one row, and adds its differences from ``expected`` to the totals."""
        length = len(expected.tokens)
        following = np.arange(length - expected.answer - 1, length - 1)
        at = np.concatenate([expected.at, following]).astype(np.int64)
        found = forward(expected.tokens, at, expected.positions)
        positions = np.arange(length) if expected.positions is None else expected.positions
        accepted = self.tolerance * np.maximum(positions[at] / EXACT_TO, 1.0)
        split = len(expected.at)
        differences = np.abs(found[:split] - expected.logits)
        shares = differences / accepted[:split, None]
        # The built-in max would lose NaN.
        self.largest = float(np.maximum(self.largest, differences.max(initial=0.0)))
        self.share = float(np.maximum(self.share, shares.max(initial=0.0)))
        self.places += split
        self.best += self._same(found[:split], expected.logits.argmax(1), accepted[:split])
        if expected.answer:
            self.tokens += expected.answer
            answer = expected.tokens[length - expected.answer :]
            self.greedy += self._same(found[split:], answer, accepted[split:])

    def _same(self, logits: np.ndarray, best: np.ndarray, accepted: np.ndarray) -> int:
        """Returns the number of given tokens that are the best, ties included."""
        lead = logits.max(1) - np.take_along_axis(logits, best[:, None].astype(int), 1)[:, 0]
        self.tied += int(((lead > 0) & (lead <= 2 * accepted)).sum())
        return int((lead <= 2 * accepted).sum())

    def holds(self) -> bool:
        """True if both computations are those of the same model."""
        same = self.best == self.places and self.greedy == self.tokens
        return self.share <= 1.0 and same

    def __str__(self) -> str:
        ties = f" ({self.tied} of them by a tie)" if self.tied else ""
        return (
            f"the largest difference of logits is {self.largest:.1e} ({self.share:.2g} of what is "
            f"accepted), and the best token is the same at {self.best} of {self.places} places and "
            f"{self.greedy} of {self.tokens} greedy tokens{ties}"
        )
