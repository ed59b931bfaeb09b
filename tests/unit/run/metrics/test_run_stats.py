"""Sums over the steps of a run are those of all steps, in memory that does not grow."""

import random

import pytest

from rlax_plugin.run.metrics.run_stats import KEPT, RunStats


def test_sums_are_those_of_all_steps() -> None:
    stats, chance = RunStats(), random.Random(0)
    values = [chance.uniform(-5, 5) for _ in range(3 * KEPT)]
    for step, value in enumerate(values):
        stats.add({"a/x": value, "time/s": 2.0} | ({"b/y": float(step)} if step % 7 == 0 else {}))
    assert stats.steps == stats.count("a/x") == len(values) and stats.count("b/y") == 9
    assert stats.mean("a/x") == pytest.approx(sum(values) / len(values))
    assert stats.first_mean("a/x", 10) == pytest.approx(sum(values[:10]) / 10)
    assert stats.last_mean("a/x", 10) == pytest.approx(sum(values[-10:]) / 10)
    assert stats.largest("a/x") == max(values)
    assert list(stats.newest("b/y")) == [0, 7, 14, 21, 28, 35, 42, 49, 56]
    assert stats.rate("a/x", "time/s") == pytest.approx(sum(values) / (2 * len(values)))
    assert len(stats.recent) == KEPT and stats.recent[-1]["a/x"] == values[-1]
