"""Axes of the report's charts that far values would squash."""

import numpy as np
import plotly.graph_objects as go
import pytest

from rlax_plugin.tools.commands.report import charts
from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.series import cut_off

STEPS = np.arange(1.0, 41.0)
WAVE = 0.5 + 0.1 * (STEPS % 5)  # 0.5 .. 0.9


def with_first(first: float, values: np.ndarray = WAVE) -> np.ndarray:
    return np.concatenate([[first], values[1:]])


def axis(*lines: np.ndarray, from_zero: bool = False) -> tuple[float, ...] | None:
    figure = go.Figure()
    caption = cut_off(figure, lines, from_zero=from_zero)
    assert bool(caption) == (figure.layout.yaxis.range is not None)
    return figure.layout.yaxis.range


def test_a_first_value_that_is_a_hundred_times_the_others_is_cut_off() -> None:
    # 0.5 to 0.9, and 5 % of that on both sides.
    assert axis(with_first(60.0)) == pytest.approx((0.48, 0.92))
    assert axis(with_first(-60.0)) == pytest.approx((0.48, 0.92))
    assert axis(with_first(60.0), from_zero=True) == pytest.approx((0, 0.945))
    two = with_first(60.0), with_first(np.nan, 2 * WAVE)
    assert axis(*two) == pytest.approx((0.435, 1.865))


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
    assert axis(values) is None


def test_the_caption_says_that_values_are_beyond_the_axis() -> None:
    metrics = {"step": list(STEPS), "time/step_s": list(with_first(60.0))}
    sections = charts.sections([RunData("a", "a", metrics=metrics)])
    (phases,) = (c for section in sections for c in section.charts if c.key == "phases")
    assert phases.figure.layout.yaxis.range == pytest.approx((0, 0.945))
    assert phases.caption.endswith("1 values are beyond the axis; a double click shows all.")
