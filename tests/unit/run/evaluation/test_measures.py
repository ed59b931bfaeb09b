"""What an evaluation measures, against numbers worked out by hand."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from part_stubs import SourceStub
from sections import section_with

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Key, Prompt
from rlax_plugin.config import Evaluation
from rlax_plugin.data.prompts.of_run import asked_sets
from rlax_plugin.run.evaluation.measures import Outcomes, measures
from rlax_plugin.run.evaluation.problems import problem_sets
from rlax_plugin.run.evaluation.statistics import majority_at_k


def test_majority_by_hand():
    answers, passed = ["7", "7", "3", "5"], [True, True, False, False]
    # One vote is pass@1. Of the six pairs, {7, 7} wins, four have a 7 and tie, {3, 5} loses.
    assert majority_at_k(answers, passed, 1) == 0.5
    assert majority_at_k(answers, passed, 2) == pytest.approx((1 + 4 * 0.5) / 6)
    # Of three, {7, 7, x} twice and {7, 3, 5} twice.
    assert majority_at_k(answers, passed, 3) == pytest.approx((2 + 2 / 3) / 4)
    assert majority_at_k(answers, passed, 4) == 1.0
    # The commonest answer is wrong: more votes make it worse, unlike pass@k.
    assert majority_at_k(["3", "3", "3", "7"], [False] * 3 + [True], 4) == 0.0
    # An answer whose samples passed half of the time counts half.
    assert majority_at_k(["7", "7"], [True, False], 2) == 0.5


def test_samples_without_an_answer_do_not_vote():
    assert majority_at_k([None, None, "7"], [False, False, True], 3) == 1.0
    assert majority_at_k([None, None, "7"], [False, False, True], 1) == pytest.approx(1 / 3)
    assert majority_at_k([None, None], [True, True], 2) == 0.0


def by_counting(answers: list[str | None], passed: list[bool], k: int) -> float:
    share = {
        a: np.mean([p for b, p in zip(answers, passed, strict=True) if a == b]) for a in answers
    }
    values = []
    for subset in itertools.combinations(answers, k):
        votes = Counter(a for a in subset if a is not None)
        best = [a for a, count in votes.items() if count == max(votes.values())]
        values.append(np.mean([share[a] for a in best]) if best else 0.0)
    return float(np.mean(values))


def test_majority_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    for _ in range(150):
        n = int(rng.integers(1, 9))
        answers = [None if a == 0 else str(a) for a in rng.integers(0, 5, n)]
        passed = (rng.random(n) < 0.5).tolist()
        k = int(rng.integers(1, n + 1))
        expected = by_counting(answers, passed, k)
        assert majority_at_k(answers, passed, k) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="k = 3, n = 2"):
        majority_at_k(["1", "2"], [True, True], 3)


def test_majority_of_more_subsets_than_a_float_holds():
    n, k, right = 1100, 550, 600
    answers = ["right"] * right + ["wrong"] * (n - right)
    ways = [math.comb(right, i) * math.comb(n - right, k - i) for i in range(k + 1)]
    expected = Fraction(2 * sum(ways[k // 2 + 1 :]) + ways[k // 2], 2 * math.comb(n, k))
    found = majority_at_k(answers, [a == "right" for a in answers], k)
    assert found == pytest.approx(float(expected), rel=1e-12) and 0.99 < found < 1
    # Eleven answers that are equally common win equally often.
    answers = [str(i % 11) for i in range(n)]
    found = majority_at_k(answers, [a == "0" for a in answers], k)
    assert found == pytest.approx(1 / 11, rel=1e-12)


OUTCOMES = Outcomes(
    rewards_bn=np.array([[1.0, 1.0, 0.0, np.nan], [0.0, 0.0, 0.0, 0.5]]),
    lengths_bn=np.array([[1, 2, 3, 4], [5, 6, 7, 8]]),
    truncated_bn=np.array([[False, False, False, False], [False, False, True, True]]),
    answers_bn=[["a", "a", "b", "a"], ["b", "b", "b", "a"]],
)
ALL = {"pass_threshold": 0.5, "k": (1, 2), "majority_k": (4,), "resamples": 300, "seed": 0}


def test_every_measure_by_hand():
    found = measures(OUTCOMES, **ALL)
    values = {name: estimate.value for name, estimate in found.items()}
    assert values == pytest.approx(
        {
            "pass_at_1": (2 / 4 + 1 / 4) / 2,  # the one that could not be scored has not passed
            "pass_at_2": (1 - 1 / 6 + 1 - 3 / 6) / 2,
            "majority_at_4": (2 / 3 + 0) / 2,  # of the three that say "a", two passed
            "reward_mean": 2.5 / 7,
            "length_mean": 4.5,
            "length_p95": 7.65,
            "truncated": 2 / 8,
            "reward_errors": 1 / 8,
        }
    )
    # Two problems: the interval of a mean reaches from the one to the other.
    assert found["pass_at_1"].ci95 == (0.25, 0.5) and found["length_mean"].ci95 == (2.5, 6.5)
    assert found["reward_mean"].ci95 == pytest.approx((0.5 / 4, 2 / 3))
    # The same problem generated twice has lengths 1, 1, 2, 2, 3, 3, 4, 4.
    assert found["length_p95"].ci95 == (4.0, 8.0)
    assert all((e.n, e.problems) == (4, 2) for e in found.values())
    assert measures(OUTCOMES, **ALL) == found


def test_without_any_score_there_is_no_mean_reward():
    failed = dataclasses.replace(OUTCOMES, rewards_bn=np.full((2, 4), np.nan))
    found = measures(failed, **ALL)
    assert "reward_mean" not in found
    assert found["reward_errors"].value == 1.0 and found["pass_at_2"].value == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"majority_k": [17]}, r"rlax.evaluation.majority_k = 17: .*samples = 16"),
        ({"sets": {"hard": {"samples": 4}}}, r"k = 8: .*rlax.evaluation.sets.hard.samples = 4"),
        ({"sets": {"test": {}}}, r"rlax.evaluation.sets.test: .*name of the main set"),
    ],
)
def test_sets_that_cannot_be_measured_are_rejected(settings, message):
    with pytest.raises(ConfigError, match=message):
        Evaluation.model_validate(settings)


def test_sets_take_over_what_they_leave_out():
    own = {"rewards": [{"name": "other", "strict": True}], "samples": 20}
    own["prompt_source"] = {"name": "mine", "limit": None}
    evaluation = Evaluation.model_validate({"split": "validation", "sets": {"hard": own}})
    main, hard = evaluation.all_sets().values()
    assert (main.split, main.problems, main.samples) == ("validation", 512, 16)
    assert (hard.split, hard.problems, hard.samples) == ("validation", 512, 20)
    assert hard.prompt_source.options == {"limit": None}  # not the part's default
    assert hard.rewards[0].options == {"strict": True} and evaluation.most_samples == 20
    with pytest.raises(ConfigError, match=r"rlax.evaluation.every = 5: must be 0 with"):
        section_with(deterministic=True, evaluation={"every": 5})


class Source(SourceStub):
    def __init__(self, stop_ids=(1,), length=4, stop_strings=()):
        self.stop_ids, self.length, self.stop_strings = stop_ids, length, stop_strings

    def prompts(self, split):
        if split == "empty":
            return []
        return [Prompt(f"p{i}", np.zeros(self.length, np.int32), "", "") for i in range(3)]


@pytest.mark.parametrize(
    ("other", "sets", "message"),
    [
        (Source((2,)), {"far": {"prompt_source": {"name": "y"}}}, r"has stop ids \[2\], .*\[1\]"),
        (
            Source(stop_strings=("\n", ";")),
            {"far": {"prompt_source": {"name": "y"}}},
            r"has stop strings \['\\n', ';'\], but must have those of rlax.prompt_source, \[\]",
        ),
        (Source(length=99), {"far": {"prompt_source": {"name": "y"}}}, r"at least 99, the longest"),
        (Source(), {"far": {"split": "empty"}}, r"sets.far.split = 'empty': has no"),
    ],
)
def test_sets_that_workers_cannot_take_are_rejected(other, sets, message):
    settings = section_with(evaluation={"sets": sets})
    with pytest.raises(ConfigError, match=message):
        asked_sets(settings, Source(), lambda kind, choice, key: other)


NOBODY: Any = {"": None}  # scores or plays


@pytest.mark.parametrize(("given", "used"), [(None, 0.8), (0.0, 0.0), (0.5, 0.5)])
def test_sets_are_asked_at_the_temperature_of_evaluation(given, used):
    settings = section_with(
        rollouts={"temperature": 0.8, "top_p": 0.9}, evaluation={"temperature": given}
    )
    (main,) = problem_sets(settings, asked_sets(settings, Source(), None), NOBODY, {}, NOBODY)
    assert (main.sampling.temperature, main.sampling.top_p) == (used, 0.9)


def test_sets_are_asked_with_seeds_of_their_own():
    settings = section_with(evaluation={"sets": {"again": {"split": "test", "samples": 8}}})
    part = None  # every set has the prompt source of training
    main, again = problem_sets(settings, asked_sets(settings, Source(), part), NOBODY, {}, NOBODY)
    prompt = main.prompts[0]
    context = np.array([3, 4], np.int32)
    first, second = main.request(context, prompt, 0, 7, 5), again.request(context, prompt, 4, 7, 5)
    assert first.context.tolist() == [3, 4] and first.exactly is None
    assert (first.key, second.key) == (Key("evaluate", 0), Key("evaluate", 4))
    assert (first.min_version, second.min_version) == (5, 5)
    assert len(first.seeds) == 16 and not set(first.seeds) & set(second.seeds)
    assert first.seeds == main.request(context, prompt, 9, 7, 6, exactly=6).seeds
