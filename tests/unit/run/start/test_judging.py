"""The verdict on a run, and the causes that its figures support, at numbers."""

from pathlib import Path
from typing import Any

import pytest
from sections import section_with

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.evaluation.result import Evaluated
from rlax_plugin.run.evaluation.statistics import Estimate
from rlax_plugin.run.metrics.run_stats import RunStats
from rlax_plugin.run.start.judging import Change, Judged, causes, change_of, sentence_on, verdict_of
from rlax_plugin.run.start.results import recorded_verdict

SECTION = section_with()
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
    assert (found["outcome"], found["pass_at_1_change"]) == ("worse", -0.25)
    assert found["ci95"] == [-0.25, -0.25]
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
    several = {name: {"prompt_source": {"name": "x"}} for name in ("validation", "w")}
    section = section_with(environments=several)
    found = verdict_of(before, after, RunStats(), section, MAXTEXT, 60)
    assert found is not None and ", the first of 2 environments, went from " in found["sentence"]


def test_a_run_without_counts_of_each_problem_is_not_judged() -> None:
    counted = evaluated(0, (3, 2), 0.0)
    old = Evaluated(60, counted.sets)
    assert verdict_of(counted, old, RunStats(), SECTION, MAXTEXT, 60) is None
    assert verdict_of(None, counted, RunStats(), SECTION, MAXTEXT, 60) is None
    assert verdict_of(counted, None, RunStats(), SECTION, MAXTEXT, 60) is None


WORSE = Change(0.6, 0.5, (-0.13, -0.07), 512)
UNCHANGED = Change(0.6, 0.601, (-0.02, 0.022), 512)
BETTER = Change(0.5, 0.6, (0.07, 0.13), 512)


def judged(steps: int = 320, **figures: Any) -> Judged:
    """A sound run but for some figures: of metrics at its first and last steps, or of measures."""
    metrics = {
        "learning/current_learning_rate": (5e-4, 5e-4),
        "objective/entropy": (1.0, 0.5),
        "reward/mean": (0.4, 0.45),
        "batch/groups_equal": (0.1, 0.1),
        "staleness/mean": (1.0, 1.0),
        "logprob_gap/mean": (1e-6, 1e-6),
        "objective/kl_k3": (0.001, 0.001),
    }
    measures = {"length_mean": (100.0, 110.0), "truncated": (0.1, 0.12), "reward_errors": (0, 0)}
    for name, pair in figures.items():
        (measures if name in measures else metrics)[name.replace("__", "/")] = pair
    stats = RunStats()
    for place in (0,) * 10 + (1,) * 10:
        stats.add({name: pair[place] for name, pair in metrics.items()})
    before, after = (
        {name: Estimate(float(pair[when]), 8, 512, (0.0, 1.0)) for name, pair in measures.items()}
        for when in (0, 1)
    )
    return Judged(stats, before, after, SECTION, {"learning_rate": 5e-4, "steps": 320}, steps)


def test_a_change_is_paired_by_problem() -> None:
    """Problems differ far more among each other than each from itself."""
    counts = (0, 4) * 32
    before = evaluated(0, counts, 0.0)
    after = evaluated(9, tuple(max(0, passed - 1) for passed in counts), 0.0)
    change = change_of(before, after, SECTION)
    assert change is not None and change.problems == 64
    assert (change.before, change.after) == (0.5, 0.375) and change.outcome == "worse"
    # Unpaired, each share alone is uncertain by 12 points.
    low, high = change.ci95
    assert -0.17 < low < -0.125 < high < -0.08
    same = change_of(before, before, SECTION)
    assert same is not None and same.ci95 == (0, 0) and same.outcome == "unchanged"
    assert change_of(before, evaluated(9, counts[1:], 0.0), SECTION) is None
    of_8_samples = {"test": {"pass_at_1": Estimate(0.5, 8, 64, (0.5, 0.5))}}
    assert change_of(before, Evaluated(9, of_8_samples, {}, {"test": counts}), SECTION) is None


@pytest.mark.parametrize(
    ("ci95", "outcome"),
    [((-0.2, -0.001), "worse"), ((-0.2, 0.0), "unchanged"), ((0.0, 0.2), "unchanged")],
)
def test_the_interval_decides(ci95: tuple[float, float], outcome: str) -> None:
    assert Change(0.5, 0.5, ci95, 10).outcome == outcome


CAUSES = [
    ("reward_errors", (0.0, 0.05), (0.0, 0.049), "rewards failed for 5.0 %"),
    ("logprob_gap__mean", (0.02, 0.02), (0.0199, 0.0199), "logprob_gap/mean 0.02 nats"),
    ("objective__entropy", (1.0, 0.2), (1.0, 0.21), "the entropy collapsed"),
    ("objective__entropy", (1.0, 2.0), (1.0, 1.99), "the entropy grew"),
    ("truncated", (0.1, 0.2), (0.1, 0.19), "rlax.rollouts.max_new_tokens = "),
    ("truncated", (0.45, 0.5), (0.45, 0.49), "50 % of the evaluated samples"),
    ("length_mean", (100.0, 150.0), (100.0, 149.0), "completions became longer"),
    ("length_mean", (100.0, 50.0), (100.0, 51.0), "completions became shorter"),
    ("batch__groups_equal", (0.5, 0.5), (0.49, 0.49), "rlax.rollouts.group_size = "),
    ("reward__mean", (0.5, 0.4), (0.5, 0.41), "learning_rate = 0.0005"),
    ("objective__kl_k3", (0.1, 0.1), (0.099, 0.099), "objective/kl_k3 was 0.1 nats"),
    ("staleness__mean", (4.0, 4.0), (3.9, 3.9), "rlax.staleness.max_staleness = "),
]


@pytest.mark.parametrize(("name", "beyond", "within", "said"), CAUSES)
def test_each_cause_is_named_from_its_threshold_on(
    name: str, beyond: tuple[float, float], within: tuple[float, float], said: str
) -> None:
    for change in (WORSE, UNCHANGED):
        (cause,) = causes(judged(**{name: beyond}), change)
        assert said in cause
        assert causes(judged(**{name: within}), change) == ()
    assert causes(judged(**{name: beyond}), BETTER) == ()


def test_some_causes_explain_only_that_nothing_changed() -> None:
    slow = judged(learning__current_learning_rate=(9e-8, 9e-8))
    (cause,) = causes(slow, UNCHANGED)
    assert "current_learning_rate was 9e-08): raise learning_rate = 0.0005" in cause
    assert causes(slow, WORSE) == ()
    (cause,) = causes(judged(), Change(0.5, 0.48, (-0.1, 0.06), 20))
    assert "20 problems cannot tell a change of less than 8 points" in cause
    assert causes(judged(), Change(0.5, 0.5, (-0.05, 0.05), 20)) == ()
    assert causes(judged(), Change(0.5, 0.3, (-0.3, -0.1), 20)) == ()


def test_a_short_run_has_a_beginning_and_an_end_too() -> None:
    stats = RunStats()
    for step in range(12):
        stats.add({"reward/mean": 0.5 if step < 6 else 0.2})
    run = judged()._replace(stats=stats, steps=12)
    (cause,) = causes(run, WORSE)
    assert cause.startswith("the policy changed too fast (reward/mean fell from 0.5 to 0.2): lower")
    few = RunStats()
    few.add({"reward/mean": 0.5})
    few.add({"reward/mean": 0.2})
    assert causes(run._replace(stats=few), WORSE) == ()


def test_the_sentence_has_the_change_and_at_most_three_causes() -> None:
    assert sentence_on(judged(), WORSE, "test") == (
        "The run ended below its beginning: pass@1 on test went from 0.600 to 0.500 (-10.0 points; "
        "95 % interval of the difference, paired by problem: -13.0 to -7.0); no figure explains "
        "it: compare early and late samples with rlax report, and try a tenth of learning_rate = "
        "0.0005: one that is too high is a possible cause."
    )
    short = judged(steps=12)
    assert "updates" not in sentence_on(short, WORSE, "test")
    nothing = sentence_on(judged(steps=3), UNCHANGED, "test")
    assert nothing.startswith("The evaluation does not show that anything was learned: pass@1")
    assert nothing.endswith("a likely cause: the run made only 3 updates: raise steps = 320.")
    high = dict.fromkeys(("batch__groups_equal", "logprob_gap__mean"), (0.9, 0.9))
    much = judged(steps=5, staleness__mean=(9.0, 9.0), objective__kl_k3=(1.0, 1.0), **high)
    sentence = sentence_on(much, WORSE, "test")
    assert "likely causes: (1) trainer and" in sentence and "; (2) 90 % of" in sentence
    assert "; (3) the policy changed too fast" in sentence and "(4)" not in sentence
