"""GAE over the turns of an episode as they were played, and what a critic learns from it."""

from functools import partial

import numpy as np
import pytest
from rlax_objectives.advantages import Gae

from rlax_plugin.base.types import Episode, Score, ScoredGroup, TrainBatch, Trajectory, Turn
from rlax_plugin.config import Overlong
from rlax_plugin.testing import make_group, make_prompt, make_sampled
from rlax_plugin.training.objective.advantages import (
    LengthPenalised,
    Outcomes,
    of_batch,
    returns_of,
)
from rlax_plugin.training.objective.batches import build_arrays

PROMPT = make_prompt(tokens=np.array([11, 12], np.int32))
ENDED = {"gamma": 0.5, "lam": 0.5, "whiten_over": "none"}
HALVES = ENDED | {"truncated": "bootstrap"}


def turn(given, *tokens):
    return Turn(np.array(given, np.int32), make_sampled(tokens=tokens))


def arrays_of(ended, **layout):
    """31; then 41 in another trajectory; then 32 in the first one, behind a tool's 61."""
    first = Trajectory((turn([11, 12], 31), turn([61], 32)))
    second = Trajectory((turn([51], 41),))
    episode = Episode(0, (first, second), ended=ended, order=(0, 2, 1))
    group = ScoredGroup(1, 1, PROMPT, (episode,), (Score(16.0),))
    other = make_group((2.0,), id=2, lengths=(1,), prompt=PROMPT)
    batch = TrainBatch(1, (group, other), (np.zeros(1), np.zeros(1)))
    return build_arrays(batch, length=12, **(layout or {"rows": 3}))


# Values of the states before 31, 41 and 32, in time, and before the other sample's only token.
VALUES = {31: 1.0, 41: 2.0, 32: 4.0, 4: 0.5}


def computed(slot, arrays):
    """The numbers of the tokens 31, 41, 32 and of the other sample."""
    values_bt = np.full(arrays["inputs"].shape, np.nan)
    for token, value in VALUES.items():
        values_bt[arrays["targets"] == token] = value
    final_bt = np.where(arrays["targets"] == 32, 8.0, np.nan)  # behind all others: not read
    final_bt[arrays["targets"] == 4] = 100.0  # it is done
    found_bt = of_batch(slot, arrays, values_bt=values_bt, final_values_bt=final_bt)
    return [float(found_bt[arrays["targets"] == token][0]) for token in VALUES]


@pytest.mark.parametrize("layout", [{"rows": 3}, {"rows": 2, "sequences_per_row": 3}])
def test_a_truncated_episode_goes_on_behind_its_last_turn_and_a_done_one_does_not(layout):
    # delta: 16 + 8/2 - 4 = 16 behind 32; 4/2 - 2 = 0 and 2/2 - 1 = 0 before. Each goes back / 4.
    slot = Gae(**HALVES)
    cut, done = arrays_of("cut", **layout), arrays_of("done", **layout)
    assert computed(slot, cut) == [1.0, 4.0, 16.0, 1.5]
    assert computed(partial(returns_of, slot), cut) == [2.0, 6.0, 20.0, 2.0]
    # 16 - 4 = 12 without what would have followed.
    assert computed(slot, done) == [0.75, 3.0, 12.0, 1.5]
    assert computed(Gae(**ENDED), cut) == [0.75, 3.0, 12.0, 1.5]


def test_over_turns_all_tokens_of_a_turn_have_its_advantage_and_return():
    outcomes = Outcomes(
        np.array([16.0]),
        np.array([4]),
        np.array([0]),
        values_nt=np.array([[1.0, 50.0, 4.0, 60.0]]),  # before the turns: 1 and 4
        turns_nt=np.array([[1, 1, 2, 2]]),
        final_values_n=np.array([8.0]),
    )
    slot = Gae(**HALVES, over="turns")
    # 16 + 8/2 - 4 = 16 of the second turn; 4/2 - 1 = 1 and a quarter of 16 of the first.
    np.testing.assert_array_equal(slot(outcomes), [[5, 5, 16, 16]])
    np.testing.assert_array_equal(slot.returns(outcomes), [[6, 6, 20, 20]])
    ended = Gae(**ENDED, over="turns")
    np.testing.assert_array_equal(ended(outcomes), [[4, 4, 12, 12]])


def test_the_critic_may_learn_with_another_lambda():
    slot = Gae(**HALVES | {"lam": 0.0}, critic_lam=1.0)
    arrays = arrays_of("cut")
    assert computed(slot, arrays) == [0.0, 0.0, 16.0, 1.5]
    # Discounted 20: what was paid, and what would have followed.
    assert computed(partial(returns_of, slot), arrays) == [5.0, 10.0, 20.0, 2.0]


def test_whitening_does_not_reach_the_returns_and_the_length_penalty_does():
    slot = Gae(gamma=0.5, lam=0.5, truncated="bootstrap")
    assert computed(partial(returns_of, slot), arrays_of("cut")) == [2.0, 6.0, 20.0, 2.0]
    assert computed(slot, arrays_of("cut"))[0] < 0
    # 3 of at most 4 tokens are half of the way into the buffer of 2.
    overlong = Overlong(penalty=1.0, buffer_tokens=2, max_tokens=4)
    penalised = LengthPenalised(Gae(**HALVES), overlong, 4)
    assert computed(partial(returns_of, penalised), arrays_of("done"))[2] == 15.5
    assert computed(penalised, arrays_of("done"))[2] == 11.5


def test_without_an_estimate_of_its_own_a_slot_gives_the_rewards_to_come():
    outcomes = Outcomes(
        np.array([1.0]), np.array([2]), np.array([0]), token_rewards_nt=np.array([[0.25, 0.5]])
    )
    np.testing.assert_array_equal(
        returns_of(lambda outcomes: outcomes.rewards_n, outcomes), [[1.75, 1.5]]
    )
    np.testing.assert_array_equal(Gae().returns(outcomes), [[1.75, 1.5]])
