"""The facts of a batch that slots see, packed, accumulated, and of several trajectories.

Group 1 has the samples a (reward 2, tokens -1 -2) and b (reward -1, one trajectory of the token -3
and one of the tokens -4 -5), and one sample without a score. Group 2 has c (reward 0, token -6).
"""

from dataclasses import replace

import numpy as np
import pytest
from objective_harness import differentiated, modes, slots_of

from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.types import (
    Episode,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
)
from rlax_plugin.testing import make_prompt, make_sampled
from rlax_plugin.training.objective.advantages import of_batch, of_groups
from rlax_plugin.training.objective.batches import build_arrays
from rlax_plugin.training.objective.inputs import TokenOutputs
from rlax_plugin.training.objective.loss import token_inputs
from rlax_plugin.training.objective.update_sums import UPDATE_ARRAYS, update_sums

PROMPT = make_prompt(tokens=np.array([11], np.int32))


def trajectory(*logprobs):
    sampled = make_sampled(
        tokens=[20] * len(logprobs), logprobs=np.array(logprobs, np.float32), version=4
    )
    return Trajectory((Turn(PROMPT.tokens, sampled),))


def groups():
    a, b = Episode(0, (trajectory(-1, -2),)), Episode(1, (trajectory(-3), trajectory(-4, -5)))
    scores = (Score(2.0, (1.0, 4.0)), Score(-1.0, (-1.0, 0.0)), Unscored("timeout"))
    first = ScoredGroup(7, 1, PROMPT, (a, b, Episode(2, (trajectory(-9),))), scores)
    c = Episode(0, (trajectory(-6),))
    return first, ScoredGroup(8, 1, PROMPT, (c,), (Score(0.0, (0.0, 0.0)),))


def arrays(rows=6, length=3, sequences_per_row=1):
    batch = TrainBatch(5, groups(), (np.array([1.0, -1.0, 0.0]), np.array([0.5])))
    return build_arrays(
        batch, rows=rows, length=length, sequences_per_row=sequences_per_row, reward_parts=2
    )


def inputs_of(data, **changes):
    slots = replace(slots_of("grpo", sequences_per_row=3), **changes)
    outputs = TokenOutputs(data["rl_behaviour_logprobs"], data["rl_behaviour_logprobs"])
    return token_inputs(slots, outputs, data)


BY_TOKEN = {  # of the tokens -1 .. -6
    "group_bt": [1, 1, 1, 1, 1, 2],
    "group_size_bt": [2, 2, 2, 2, 2, 1],
    "group_tokens_bt": [5, 5, 5, 5, 5, 1],
    "sample_bt": [0, 0, 1, 1, 1, 0],
    "sample_tokens_bt": [2, 2, 3, 3, 3, 1],
    "sample_length_bt": [2, 2, 3, 3, 3, 1],
    "length_bt": [2, 2, 1, 2, 2, 1],  # of a sequence, which is a trajectory
    "reward_bt": [2, 2, -1, -1, -1, 0],
    "reward_parts_btp": [[1, 4], [1, 4], [-1, 0], [-1, 0], [-1, 0], [0, 0]],
}


def by_token(inputs, name):
    """Values of the tokens -1 .. -6, wherever they lie."""
    value, logprob = np.asarray(getattr(inputs, name)), np.asarray(inputs.behaviour_logprobs_bt)
    assert not value[logprob == 0].any(), name
    return [
        value[logprob == -1 - token].tolist()[0]
        for token in range(6)
        if (logprob == -1 - token).any()
    ]


@pytest.mark.parametrize("layout", [(6, 3, 1), (2, 8, 3)], ids=["one per row", "packed"])
def test_each_token_knows_its_group_and_sample(layout):
    data = arrays(*layout)
    inputs = inputs_of(data | update_sums(data), steps=20)
    for name, expected in BY_TOKEN.items():
        assert by_token(inputs, name) == expected, name
    assert float(inputs.step) == 5 and float(inputs.progress) == 0.25


def test_a_micro_batch_knows_its_whole_group():
    data = arrays()
    data |= update_sums(data)
    found = {name: [] for name in BY_TOKEN}
    for rows in ([0], [1, 3, 4], [2, 5]):  # the trajectories of b are apart
        part = inputs_of({name: x[rows] for name, x in data.items()}, steps=20)
        for name in BY_TOKEN:
            found[name] += by_token(part, name)
    for name, expected in BY_TOKEN.items():
        assert sorted(found[name]) == sorted(expected), name


def test_only_tokens_of_the_update_that_train_are_counted():
    data = arrays()
    data["rl_mask"][0] = 0  # sample a
    sums = update_sums({name: x[:3] for name, x in data.items()})
    assert sums["rl_group_tokens"].tolist() == [[0, 0, 0], [3, 0, 0], [3, 3, 0]]
    assert {name: x.dtype for name, x in sums.items()} == {
        name: spec.dtype for name, spec in UPDATE_ARRAYS.items()
    }


def test_what_the_batch_lacks_is_said():
    data = arrays()
    with pytest.raises(PluginError, match="reads rl_group_tokens, which the batch lacks"):
        inputs_of(data).group_tokens_bt  # noqa: B018
    with pytest.raises(PluginError, match="the number of RL steps is not known"):
        inputs_of(data).progress  # noqa: B018


@modes
def test_padding_does_not_reach_slots(mode):
    """The reward of a token as its weight: NaN on padding changes nothing."""
    slots = replace(slots_of("grpo"), importance_weight=lambda inputs: inputs.reward_bt**2)
    data = arrays() | {"rl_advantages": arrays()["rl_mask"].astype(np.float32)}
    logprobs_bt = data["rl_behaviour_logprobs"]
    clean = mode(differentiated(slots))(logprobs_bt, data)
    padding_bt = data["rl_mask"] == 0
    soiled = data | {
        "rl_total_reward": np.where(padding_bt, np.nan, data["rl_total_reward"]).astype(np.float32)
    }
    found = mode(differentiated(slots))(logprobs_bt, soiled)
    np.testing.assert_array_equal(found.grad_bt, clean.grad_bt)
    # sequence_mean: 2^2 / 2 for each token of a; 1; 1 / 2 for each of b's second trajectory; 0.
    np.testing.assert_allclose(-clean.grad_bt.sum(axis=1), [4, 1, 1, 0, 0, 0])


def test_advantages_see_turns_parts_and_step():
    seen = []

    def slot(outcomes):
        seen.append(outcomes)
        return outcomes.rewards_n

    of_groups(slot, groups(), step=5)
    of_batch(slot, arrays())
    for outcomes in seen:
        assert outcomes.turns_nt.tolist() == [[1, 1, 0], [1, 2, 2], [1, 0, 0]]
        assert outcomes.parts_np.tolist() == [[1, 4], [-1, 0], [0, 0]]
        assert outcomes.step == 5


def test_advantages_may_differ_between_the_turns_of_a_sample():
    first, second = of_groups(lambda outcomes: 1.0 * outcomes.turns_nt, groups())
    # The trajectories of b are two turns; the sample without a score gets 0.
    assert first.tolist() == [[1, 1, 0], [1, 2, 2], [0, 0, 0]]
    assert second.tolist() == [[1, 0, 0]]
