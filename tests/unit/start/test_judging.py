"""The figures of a verdict, as a run collects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.evaluation.result import Evaluated, record, recorded
from rlax_plugin.evaluation.statistics import Estimate
from rlax_plugin.metrics.run_stats import RunStats
from rlax_plugin.records.files import RunFiles
from rlax_plugin.start.judging import verdict_of
from rlax_plugin.start.results import recorded_verdict

SECTION = RlaxSection.model_validate(
    {"prompt_source": {"name": "numbers"}, "rewards": [{"name": "even"}]}
)
MAXTEXT = {"learning_rate": 0.001, "steps": 60}


def evaluated(version: int, counts: tuple[int, ...], truncated: float) -> Evaluated:
    def estimate(value: float) -> Estimate:
        return Estimate(value, 4, len(counts), (value, value))

    share = sum(counts) / 4 / len(counts)
    measures = {"pass_at_1": estimate(share), "truncated": estimate(truncated)}
    return Evaluated(version, {"test": measures}, {}, {"test": counts})


def history(**columns: Any) -> RunStats:
    stats = RunStats()
    for step in range(60):
        stats.add({name.replace("__", "/"): values(step) for name, values in columns.items()})
    return stats


def test_a_run_that_got_worse_says_so_with_its_figures(tmp_path: Path) -> None:
    before, after = evaluated(0, (3,) * 40, 0.0), evaluated(60, (2,) * 40, 0.3)
    stats = history(
        objective__entropy=lambda step: 1.0 if step < 30 else 0.1,
        learning__current_learning_rate=lambda step: 0.001,
    )
    found = verdict_of(before, after, stats, SECTION, MAXTEXT, 60)
    assert found is not None
    assert (found["outcome"], found["pass_at_1_change"], found["ci95"]) == (
        "worse",
        -0.25,
        [-0.25, -0.25],
    )
    assert "(1) the entropy collapsed (objective/entropy 1 to 0.1 nats)" in found["sentence"]
    assert "(2) 30 % of the evaluated samples were cut off (before 0 %)" in found["sentence"]
    files = RunFiles(tmp_path)
    assert recorded_verdict(files) is None
    files.put_json("summary.json", {"verdict": found})
    assert recorded_verdict(files) == found["sentence"]
    files.put_json("summary.json", {"verdict": found | {"sentence": None}})
    assert recorded_verdict(files) is None


def test_a_run_that_got_better_says_by_how_much() -> None:
    before, after = evaluated(0, (1,) * 40, 0.0), evaluated(60, (2,) * 40, 0.0)
    found = verdict_of(before, after, RunStats(), SECTION, MAXTEXT, 60)
    assert found is not None and found["outcome"] == "better"
    assert found["sentence"].startswith("The run got better: pass@1 on ")
    assert "likely cause" not in found["sentence"]


def test_a_run_without_counts_of_each_problem_is_not_judged(tmp_path: Path) -> None:
    counted = evaluated(0, (3, 2), 0.0)
    old = Evaluated(60, counted.sets)
    assert verdict_of(counted, old, RunStats(), SECTION, MAXTEXT, 60) is None
    assert verdict_of(None, counted, RunStats(), SECTION, MAXTEXT, 60) is None
    assert verdict_of(counted, None, RunStats(), SECTION, MAXTEXT, 60) is None
    files = RunFiles(tmp_path)
    record(files, "before", counted)
    assert files.get_json("evaluation/before.json")["passed"] == {"test": [3, 2]}
    assert recorded(files, "before") == counted
