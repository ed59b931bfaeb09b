"""``rlax.objective.max_gap``: when trainer and sampler have disagreed for too long."""

from __future__ import annotations

import pytest

from rlax_plugin.config import Objective
from rlax_plugin.controller.limits import gap_error

NAN = float("nan")


def history(*p95: float | None) -> list[dict[str, float]]:
    """None: no token of that step was of staleness 1."""
    return [
        {"reward/mean": 0.5} | ({} if value is None else {"logprob_gap/p95": value})
        for value in p95
    ]


@pytest.mark.parametrize(
    ("p95", "ends"),
    [
        ((), False),
        ((0.2, 0.2), False),
        ((0.2, 0.2, 0.2), True),
        ((0.2, 0.2, 0.1), False),  # at the limit is not above it
        ((0.2, 0.1, 0.2, 0.2), False),
        ((0.0, 0.2, 0.3, 0.4), True),
        ((0.2, None, 0.2, None, 0.2), True),
        ((0.2, 0.2, 0.2, None), False),  # said at the step before
        ((NAN, float("inf"), 0.2), True),
    ],
)
def test_it_ends_a_run_after_so_many_steps_in_a_row(p95: tuple[float, ...], ends: bool) -> None:
    error = gap_error(history(*p95), Objective(max_gap=0.1))
    assert (error is not None) == ends


def test_the_error_names_figures_and_keys() -> None:
    error = gap_error(history(0.0, 0.25, 0.5), Objective(max_gap=0.01, max_gap_steps=2))
    assert "logprob_gap/p95 was 0.25, 0.5 nats in the last 2 steps" in str(error)
    assert "above rlax.objective.max_gap = 0.01 (rlax.objective.max_gap_steps = 2)" in str(error)


def test_it_is_off_by_default() -> None:
    assert gap_error(history(*[100.0] * 9), Objective()) is None
