"""Sums over the steps of a run are those of all steps, in memory that does not grow."""

from __future__ import annotations

import random
import tracemalloc

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


def test_memory_does_not_grow_with_steps() -> None:
    stats = RunStats({"m/0": 50})
    names = [f"m/{number}" for number in range(90)]

    def steps(count: int) -> None:
        for step in range(count):
            stats.add({name: step + 0.5 for name in names})

    steps(200)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    steps(1000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What the first 200 steps have left is freed uncounted: at most KEPT dicts and 50 values each.
    assert after - before < 90 * (50 + KEPT) * 40
