"""``rlax.objective.max_gap``: when trainer and sampler have disagreed for too long."""

from __future__ import annotations

import pytest

from rlax_plugin.config import Objective
from rlax_plugin.controller.limits import GAP, gap_error
from rlax_plugin.errors import TrainingError
from rlax_plugin.metrics.run_stats import RunStats

NAN = float("nan")


def error_after(objective: Objective, *p95: float | None) -> TrainingError | None:
    """The error of the last step. None: no token of that step was of staleness 1."""
    stats, error = RunStats({GAP: objective.max_gap_steps}), None
    for value in p95:
        metrics = {"reward/mean": 0.5} | ({} if value is None else {GAP: value})
        stats.add(metrics)
        error = gap_error(metrics, stats.newest(GAP), objective)
    return error


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
    error = error_after(Objective(max_gap=0.1), *p95)
    assert (error is not None) == ends


def test_the_error_names_figures_and_keys() -> None:
    error = error_after(Objective(max_gap=0.01, max_gap_steps=2), 0.0, 0.25, 0.5)
    assert "logprob_gap/p95 was 0.25, 0.5 nats in the last 2 steps" in str(error)
    assert "above rlax.objective.max_gap = 0.01 (rlax.objective.max_gap_steps = 2)" in str(error)


def test_it_is_off_by_default() -> None:
    assert error_after(Objective(), *[100.0] * 9) is None


def test_as_many_steps_count_as_the_key_says() -> None:
    objective = Objective(max_gap=0.1, max_gap_steps=50)
    assert error_after(objective, *[0.2] * 49) is None
    assert error_after(objective, *[0.2] * 50) is not None
