"""Shuffle-R1: which pairs are kept, and how often the shuffle draws them; numbers by hand."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from rlax_curation.shuffle_r1 import ShuffleR1, ShuffleR1Config, check, pairs_of
from sections import section_with

from rlax_plugin.api import BuildContext, ConfigError, TrainBatch
from rlax_plugin.testing import make_batch, make_group


def repeats(batch: TrainBatch, count: int, *, rounds: int, seed: int = 0) -> list[list[int]]:
    found = ShuffleR1(ShuffleR1Config(rounds=rounds)).repeats(
        batch, count, np.random.default_rng(seed)
    )
    return [own.tolist() for own in found]


def test_pairs_are_made_from_both_ends_and_the_first_ones_are_kept():
    """Rewards less their mean of 0.5: 0.5 and -0.5, 0.25 and -0.25, 0.125 and -0.125."""
    group = make_group((0.25, 1.0, 0.625, 0.0, 0.375, 0.75))
    batch = make_batch(groups=[group])
    found = pairs_of(0, group, batch.advantages[0])
    assert [(one.first, one.second, one.weight) for one in found] == [
        (1, 3, 1.0),
        (5, 0, 0.5),
        (2, 4, 0.25),
    ]
    assert repeats(batch, 2, rounds=1) == [[0, 1, 0, 1, 0, 0]]
    assert repeats(batch, 4, rounds=1) == [[1, 1, 0, 1, 0, 1]]
    assert repeats(batch, 6, rounds=1) == [[1] * 6]


def test_an_odd_sample_and_those_without_a_reward_are_in_no_pair():
    """Of rewards 1, 0.5 and 0 the middle one is left; equal ones pair in the order of samples."""
    lacking, equal = make_group((0.0, None, 1.0, 0.5)), make_group((1.0, 0.0, 0.0, 0.0), id=1)
    batch = make_batch(groups=[lacking, equal])
    assert repeats(batch, 8, rounds=1) == [[1, 0, 1, 0], [1, 1, 1, 1]]
    assert repeats(batch, 4, rounds=1) == [[1, 0, 1, 0], [1, 0, 0, 1]]


def test_advantages_of_tokens_count_by_their_mean():
    group = make_group((1.0, 0.0), lengths=(2, 4))
    (pair,) = pairs_of(0, group, np.array([[3.0, 1.0, 0.0, 0.0], [-1.0, -1.0, 1.0, 3.0]]))
    assert (pair.first, pair.second, pair.weight) == (0, 1, 2.0 + 0.5)


def test_the_bias_of_pairs_is_the_factor_on_the_page():
    """Of samples that fail, g = -p / (1 - p) times g of those that pass: E g = 0 in all."""
    found = []
    for passed in range(1, 9):
        group, rate = make_group([1.0] * passed + [0.0] * (16 - passed)), passed / 16
        batch = make_batch(groups=[group])
        part_n = batch.advantages[0] * np.where(group.rewards == 1, 1, -rate / (1 - rate))
        (repeats_n,) = repeats(batch, 8, rounds=1)
        found.append(np.dot(repeats_n, part_n) / 8 / part_n.mean())
    assert np.round(found, 2).tolist() == [1.93, 1.86, 1.77, 1.67, 1.33, 1.13, 1.03, 1.0]


def pairs_with(weights: list[float]) -> TrainBatch:
    """Groups of two samples, whose pair has such a weight."""
    groups = [make_group((weight / 2, -weight / 2), id=i) for i, weight in enumerate(weights)]
    return make_batch(groups=groups)


def drawn_with(probability: np.ndarray, size: int) -> np.ndarray:
    """The probability that each is among ``size`` successive draws without replacement."""
    found_n = np.zeros(len(probability))
    for order in permutations(range(len(probability)), size):
        chance, left = 1.0, 1.0
        for index in order:
            chance, left = chance * probability[index] / left, left - probability[index]
        found_n[list(order)] += chance
    return found_n


@pytest.mark.parametrize("rounds", [4, 2])
def test_the_shuffle_draws_pairs_in_proportion_to_their_advantages(rounds: int):
    """A share of weights 4, 2, 1, 1: with one draw a round, 1/2, 1/4, 1/8 and 1/8 of the rows."""
    batch, trials = pairs_with([4.0, 2.0, 1.0, 1.0]), 4000
    expected_n = rounds * drawn_with(np.array([4, 2, 1, 1]) / 8, 4 // rounds)
    assert rounds == 2 or expected_n.tolist() == [2.0, 1.0, 0.5, 0.5]
    total_n = np.zeros(4)
    for seed in range(trials):
        found = repeats(batch, 8, rounds=rounds, seed=seed)
        assert all(first == second <= rounds for first, second in found)  # none twice in a round
        assert sum(first for first, _ in found) == 4  # every row is filled
        total_n += [first for first, _ in found]
    np.testing.assert_allclose(total_n / trials, expected_n, atol=0.05)  # 4 standard errors


def test_pairs_without_a_difference_are_drawn_only_if_there_are_no_others():
    assert repeats(pairs_with([0.0, 2.0, 0.0]), 6, rounds=3) == [[0, 0], [3, 3], [0, 0]]
    assert repeats(pairs_with([0.0, 0.0]), 4, rounds=2) == [[1, 1], [1, 1]]


def test_the_advantages_of_what_trains_are_those_of_the_whole_group():
    batch = make_batch(groups=[make_group((1.0, 0.0, 0.0, 0.0))])
    own = ShuffleR1(ShuffleR1Config(rounds=1)).repeats(batch, 2, np.random.default_rng(0))
    selected = TrainBatch(1, batch.groups, batch.advantages, tuple(own)).selected
    assert [episode.index for episode in selected.groups[0].episodes] == [0, 3]
    assert selected.advantages[0].tolist() == [0.75, -0.25]


@pytest.mark.parametrize(
    ("samples", "rounds", "message"),
    [
        (4, 8, None),
        (0, 8, None),
        (3, 8, r"selection\.samples = 3: must be even"),
        (4, 9, r"selection\.rounds = 9: must not exceed the 8 pairs of a batch"),
    ],
)
def test_rows_must_hold_pairs_and_rounds_must_not_be_empty(
    samples: int, rounds: int, message: str | None
):
    options: dict[str, Any] = {"name": "shuffle_r1", "samples": samples}
    section = section_with(
        rollouts={"group_size": 8, "groups_per_step": 4}, curation={"selection": options}
    )
    context = BuildContext.outside_run(section)
    if message is None:
        check(ShuffleR1Config(rounds=rounds), context)
    else:
        with pytest.raises(ConfigError, match=message):
            check(ShuffleR1Config(rounds=rounds), context)
