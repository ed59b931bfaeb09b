"""Axes of the report's charts that far values would squash."""

from __future__ import annotations

import numpy as np
import pytest

from rlax_plugin.commands.report import charts
from rlax_plugin.commands.report.run import RunData
from rlax_plugin.commands.report.series import core

STEPS = np.arange(1.0, 41.0)
WAVE = 0.5 + 0.1 * (STEPS % 5)  # 0.5 .. 0.9


def with_first(first: float, values: np.ndarray = WAVE) -> np.ndarray:
    return np.concatenate([[first], values[1:]])


def test_a_first_value_that_is_a_hundred_times_the_others_is_cut_off() -> None:
    assert core([(STEPS, with_first(60.0))]) == pytest.approx((0.5, 0.9))
    assert core([(STEPS, with_first(-60.0))]) == pytest.approx((0.5, 0.9))
    two = [(STEPS, with_first(60.0)), (STEPS, with_first(np.nan, 2 * WAVE))]
    assert core(two) == pytest.approx((0.5, 1.8))


@pytest.mark.parametrize(
    "values",
    {
        "no far one": with_first(1.5),
        "a curve that falls fast": 10 * np.exp(-STEPS / 8),
        "a peak of what is otherwise 0": with_first(7.0, 0 * WAVE),
        "two levels": np.where(STEPS > 20, 100.0, 0.0) + WAVE,
        "too few": with_first(60.0)[:5],
        "none": WAVE * np.nan,
    }.values(),
)
def test_other_curves_are_shown_as_a_whole(values: np.ndarray) -> None:
    assert core([(STEPS, values)]) is None


def test_the_charts_mark_what_is_beyond_their_axis_and_say_so() -> None:
    seconds = with_first(60.0)
    metrics = {
        "step": list(STEPS),
        "reward/mean": list(WAVE),
        "time/step_s": list(seconds),
        "time/train_s": list(seconds / 2),
        "rollout/tokens": [100.0] * 40,
        "objective/loss": list(with_first(-900.0)),
    }
    run = RunData("a", "a", metrics=metrics)
    found = {c.key: c for section in charts.sections([run]) for c in section.charts}
    phases = found["phases"]
    assert phases.figure.layout.yaxis.range == pytest.approx((0, 0.945))  # 0.9 and 5 % of 0.9
    marks = next(t for t in phases.figure.data if t.name == "beyond the axis")
    assert (list(marks.x), list(marks.customdata)) == ([1], [60])
    assert list(marks.y) == pytest.approx([0.945]) and list(marks.marker.symbol) == ["triangle-up"]
    assert phases.caption.endswith(
        "Beyond the axis is 60 at 1 (triangle); a double click shows all."
    )
    loss = found["objective-loss"]
    assert loss.figure.layout.yaxis.range == pytest.approx((0.48, 0.92))
    below = next(t for t in loss.figure.data if t.name == "beyond the axis")
    assert list(below.marker.symbol) == ["triangle-down"] and list(below.customdata) == [-900]
    assert found["reward"].figure.layout.yaxis.range is None
    assert "axis" not in found["reward"].caption
