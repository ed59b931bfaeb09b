"""The tables by which the report moves charts from steps to another x axis."""

import pytest

from rlax_plugin.tools.commands.report.run import RunData
from rlax_plugin.tools.commands.report.x_axes import available, table

METRICS = {
    "step": [1.0, 2.0, 3.0],
    "rollout/samples": [16.0, 8.0, 16.0],
    "rollout/tokens": [100.0, 50.0, 200.0],
    "time/step_s": [36.0, 18.0, 36.0],
}


def test_positions_are_sums_up_to_the_end_of_a_step():
    run = RunData("a", "a", metrics=METRICS)
    axes = available([run])
    assert [axis.key for axis in axes] == ["samples", "tokens", "hours"]
    found = table(run, axes)
    assert found["step"] == [0, 1, 2, 3]
    assert found["samples"] == [0, 16, 24, 40]
    assert found["tokens"] == [0, 100, 150, 350]
    assert found["hours"] == pytest.approx([0, 0.01, 0.015, 0.025])


def test_an_axis_that_a_step_has_not_recorded_is_not_offered():
    earlier = METRICS | {"rollout/samples": [float("nan"), 8.0, 16.0]}  # of an earlier version
    assert [a.key for a in available([RunData("a", "a", metrics=earlier)])] == ["tokens", "hours"]
    without = {name: METRICS[name] for name in ("step", "time/step_s")}
    runs = [RunData("a", "a", metrics=METRICS), RunData("b", "b", metrics=without)]
    assert [a.key for a in available(runs)] == ["hours"]
    assert available([RunData("c", "c")]) == available([]) == []
    assert table(RunData("c", "c"), []) == {"step": []}
