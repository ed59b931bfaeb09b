"""Verdicts on runs that did not get better, at numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlax_plugin.evaluation.verdict import Change, Figures, causes, paired_change, verdict

WORSE = Change(0.6, 0.5, (-0.13, -0.07), 512)
UNCHANGED = Change(0.6, 0.601, (-0.02, 0.022), 512)
BETTER = Change(0.5, 0.6, (0.07, 0.13), 512)
SOUND = Figures(
    updates=320,
    learning_rate=5e-4,
    entropy=(1.0, 0.5),
    reward=(0.4, 0.45),
    length=(100.0, 110.0),
    truncated=(0.1, 0.12),
    reward_errors=(0.0, 0.0),
    equal_groups=0.1,
    staleness=1.0,
    gap_nats=1e-6,
    kl_nats=0.001,
    settings={
        "learning_rate": 5e-4,
        "steps": 320,
        "rlax.objective.entropy_coefficient": 0.0,
        "rlax.rollouts.group_size": 8,
        "rlax.rollouts.max_new_tokens": 256,
        "rlax.staleness.max_staleness": 8,
    },
)


def test_a_change_is_paired_by_problem() -> None:
    """Problems differ far more among each other than each from itself."""
    before = [0, 8, 0, 8, 0, 8, 0, 8] * 8
    after = [max(0, passed - 1) for passed in before]
    change = paired_change(before, after, 8, resamples=500, seed=0)
    assert change is not None and change.problems == 64
    assert (change.before, change.after) == (0.5, 0.4375) and change.outcome == "worse"
    # Unpaired, each share alone is uncertain by 12 points.
    low, high = change.ci95
    assert -0.08 < low < -0.0625 < high < -0.04
    same = paired_change(before, before, 8, resamples=500, seed=0)
    assert same is not None and same.ci95 == (0, 0) and same.outcome == "unchanged"
    assert paired_change(before, after[1:], 8, resamples=500, seed=0) is None
    assert paired_change((), (), 8, resamples=500, seed=0) is None


@pytest.mark.parametrize(
    ("ci95", "outcome"),
    [
        ((-0.2, -0.001), "worse"),
        ((-0.2, 0.0), "unchanged"),
        ((0.0, 0.2), "unchanged"),
        ((0.001, 0.2), "better"),
    ],
)
def test_the_interval_decides(ci95: tuple[float, float], outcome: str) -> None:
    assert Change(0.5, 0.5, ci95, 10).outcome == outcome


CAUSES = [
    ({"reward_errors": (0.0, 0.05)}, {"reward_errors": (0.0, 0.049)}, "rewards failed for 5.0 %"),
    ({"gap_nats": 0.02}, {"gap_nats": 0.0199}, "logprob_gap/mean 0.02 nats"),
    ({"entropy": (1.0, 0.2)}, {"entropy": (1.0, 0.21)}, "the entropy collapsed"),
    ({"entropy": (1.0, 2.0)}, {"entropy": (1.0, 1.99)}, "the entropy grew"),
    ({"truncated": (0.1, 0.2)}, {"truncated": (0.1, 0.19)}, "max_new_tokens = 256"),
    ({"truncated": (0.45, 0.5)}, {"truncated": (0.45, 0.49)}, "50 % of the evaluated samples"),
    ({"length": (100.0, 150.0)}, {"length": (100.0, 149.0)}, "completions became longer"),
    ({"length": (100.0, 50.0)}, {"length": (100.0, 51.0)}, "completions became shorter"),
    ({"equal_groups": 0.5}, {"equal_groups": 0.49}, "rlax.rollouts.group_size = 8"),
    ({"reward": (0.5, 0.4)}, {"reward": (0.5, 0.41)}, "learning_rate = 0.0005"),
    ({"kl_nats": 0.1}, {"kl_nats": 0.099}, "objective/kl_k3 was 0.1 nats"),
    ({"staleness": 4.0}, {"staleness": 3.9}, "rlax.staleness.max_staleness = 8"),
    ({"updates": 49}, {"updates": 50}, "only 49 updates: raise steps = 320"),
]


@pytest.mark.parametrize(("beyond", "within", "said"), CAUSES, ids=[said for *_, said in CAUSES])
def test_each_cause_is_named_from_its_threshold_on(
    beyond: dict[str, Any], within: dict[str, Any], said: str
) -> None:
    for change in (WORSE, UNCHANGED):
        (cause,) = causes(replace(SOUND, **beyond), change)
        assert said in cause
        assert causes(replace(SOUND, **within), change) == ()
    assert causes(replace(SOUND, **beyond), BETTER) == ()


def test_a_learning_rate_of_nothing_explains_only_that_nothing_changed() -> None:
    slow = replace(SOUND, learning_rate=9e-8)
    (cause,) = causes(slow, UNCHANGED)
    assert "current_learning_rate was 9e-08): raise learning_rate = 0.0005" in cause
    assert causes(slow, WORSE) == causes(replace(SOUND, learning_rate=1e-7), UNCHANGED) == ()


def test_a_wide_interval_explains_only_that_no_change_is_seen() -> None:
    wide = Change(0.5, 0.48, (-0.1, 0.06), 20)
    (cause,) = causes(SOUND, wide)
    assert "20 problems cannot tell a change of less than 8 points" in cause
    assert causes(SOUND, Change(0.5, 0.5, (-0.05, 0.05), 20)) == ()
    assert causes(SOUND, Change(0.5, 0.3, (-0.3, -0.1), 20)) == ()


def test_at_most_three_causes_are_named_failures_first() -> None:
    much = replace(SOUND, updates=5, staleness=9.0, kl_nats=1.0, gap_nats=0.5, equal_groups=0.9)
    found = causes(much, WORSE)
    assert [cause.split()[0] for cause in found] == ["trainer", "90", "the"]
    sentence = verdict(much, WORSE, "test")
    assert "likely causes: (1) trainer and" in sentence
    assert "; (3) the policy changed too fast" in sentence and "(4)" not in sentence


def test_figures_that_are_missing_name_nothing() -> None:
    assert causes(Figures(updates=50, settings={}), WORSE) == ()
    (cause,) = causes(Figures(updates=1, settings={}), WORSE)
    assert cause == "the run made only 1 updates: raise steps"


def test_the_sentence_says_by_how_much() -> None:
    sentence = verdict(SOUND, WORSE, "test")
    assert sentence == (
        "The run ended below its beginning: pass@1 on test went from 0.600 to 0.500 (-10.0 points; "
        "95 % interval of the difference, paired by problem: -13.0 to -7.0); no figure explains "
        "it: compare early and late samples with rlax report."
    )
    nothing = verdict(replace(SOUND, updates=3), UNCHANGED, "test")
    assert nothing.startswith("The evaluation does not show that anything was learned: pass@1")
    assert nothing.endswith("a likely cause: the run made only 3 updates: raise steps = 320.")
    assert verdict(replace(SOUND, gap_nats=1.0), BETTER, "test") == (
        "The run got better: pass@1 on test went from 0.500 to 0.600 (+10.0 points; 95 % interval "
        "of the difference, paired by problem: +7.0 to +13.0)."
    )
