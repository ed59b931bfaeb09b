"""Logits of two computations, compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from maxtext_overrides.models.logits import TOLERANCE, Agreement, Expected, tolerance

LOGITS = np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [0.0, 5.0, 1.0], [1.0, 0.0, 0.5]])


def compared(ours: np.ndarray, **changes: Any) -> Agreement:
    """With the row 2 1 | 0 1: the answer to the first two tokens is the best of places 1 and 2."""
    row: dict[str, Any] = {
        "tokens": np.array([2, 1, 0, 1]),
        "at": np.arange(4),
        "logits": LOGITS,
        "answer": 2,
    }
    found = Agreement()
    found.add(Expected(**row | changes), lambda tokens, at, positions=None: ours[at])
    return found


def test_the_same_logits_are_the_same_model() -> None:
    found = compared(LOGITS)
    assert (found.largest, found.best, found.greedy, found.tied) == (0.0, 4, 2, 0)
    assert (found.places, found.tokens) == (4, 2) and found.holds()


def test_a_logit_may_differ_by_the_tolerance() -> None:
    other = LOGITS.copy()
    other[2, 2] += 0.9 * TOLERANCE
    assert compared(other).share == pytest.approx(0.9) and compared(other).holds()
    other[2, 2] += 0.2 * TOLERANCE
    assert not compared(other).holds()


def test_more_is_accepted_at_far_positions() -> None:
    other = LOGITS + 5 * TOLERANCE
    assert not compared(other).holds()
    assert compared(other, positions=np.arange(4) + 128 * 6).share == pytest.approx(5 / 6, rel=0.01)


def test_nan_is_another_model() -> None:
    other = LOGITS.copy()
    other[1, 1] = np.nan
    assert not compared(other).holds()
    nothing = {"at": np.arange(0), "logits": LOGITS[:0]}
    assert not compared(other, **nothing).holds()  # of the answer alone


def test_another_best_token_is_another_model_unless_it_is_a_tie() -> None:
    near, other = LOGITS.copy(), LOGITS.copy()
    near[1, 1], other[1, 1] = 3.0 - 0.5 * TOLERANCE, 3.0 + 0.4 * TOLERANCE
    found = compared(other, logits=near)
    assert found.holds() and found.tied == 2  # at that place, and as a token of the answer
    other[1, 1] = 3.1
    found = compared(other, logits=near)
    assert not found.holds() and (found.best, found.greedy) == (3, 1)
    assert "at 3 of 4 places and 1 of 2 greedy tokens" in str(found)


def test_large_models_get_four_times_their_own_rounding() -> None:
    assert tolerance(1e-5) == TOLERANCE
    assert tolerance(1.2e-4) == pytest.approx(4.8e-4)
    assert tolerance(1.0) == 2e-3
