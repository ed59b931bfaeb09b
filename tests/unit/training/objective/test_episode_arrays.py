"""Episodes of several turns and trajectories, laid out by hand: what was given does not train."""

from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import rlax_objectives
from sections import section_with

from rlax_plugin.api import BuildContext, TokenInputs
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import (
    Episode,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
)
from rlax_plugin.testing import make_episode, make_prompt, make_sampled
from rlax_plugin.training.objective.advantages import Outcomes, of_batch
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS, build_arrays, sizes

SPECS = ARRAYS | HOST_ARRAYS
PROMPT = make_prompt(tokens=np.array([11, 12], np.int32))


def sampled(tokens, logprobs, versions, finish="stop") -> Sampled:
    return make_sampled(
        tokens=tokens,
        logprobs=np.array(logprobs, np.float32),
        versions=np.array(versions, np.int32),
        finish=finish,
    )


def given(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def two_turns() -> Episode:
    """The prompt, 21 22; a tool's 61 62 63, and behind it 23."""
    return make_episode(
        sampled([21, 22], [-0.5, -0.25], [3, 3]),
        Turn(given(61, 62, 63), sampled([23], [-1.0], [4])),
        prompt=PROMPT,
    )


def two_trajectories() -> Episode:
    """The prompt and 31; and, begun behind another context, 41 42, 71, 43."""
    later = Trajectory(
        (
            Turn(given(51), sampled([41, 42], [-2.0, -2.5], [2, 4])),
            Turn(given(71), sampled([43], [-3.0], [4])),
        )
    )
    first = make_episode(sampled([31], [-1.5], [4]), index=1, prompt=PROMPT)
    return replace(first, trajectories=(*first.trajectories, later))


def group(*episodes: Episode, scores: tuple[Score, ...]) -> ScoredGroup:
    return ScoredGroup(7, 1, PROMPT, episodes, scores)


def batch() -> TrainBatch:
    answered = group(two_turns(), two_trajectories(), scores=(Score(1.0), Score(0.25)))
    return TrainBatch(5, (answered,), (np.array([1.5, -0.5]),))


# 11 12 21 22 61 62 63 23, 11 12 31 and 51 41 42 71 43: 7, 2 and 4 positions.
EXPECTED = {
    "inputs": [[11, 12, 21, 22, 61, 62, 63, 9], [11, 12, *[9] * 6], [51, 41, 42, 71, *[9] * 4]],
    "targets": [[12, 21, 22, 61, 62, 63, 23, 9], [12, 31, *[9] * 6], [41, 42, 71, 43, *[9] * 4]],
    "inputs_segmentation": [[1] * 7 + [0], [1] * 2 + [0] * 6, [1] * 4 + [0] * 4],
    "inputs_position": [[0, 1, 2, 3, 4, 5, 6, 7]] * 3,
    "rl_mask": [[0, 1, 1, 0, 0, 0, 1, 0], [0, 1] + [0] * 6, [1, 1, 0, 1] + [0] * 4],
    "rl_advantages": [
        [0, 1.5, 1.5, 0, 0, 0, 1.5, 0],
        [0, -0.5] + [0] * 6,
        [-0.5, -0.5, 0, -0.5] + [0] * 4,
    ],
    "rl_behaviour_logprobs": [
        [0, -0.5, -0.25, 0, 0, 0, -1, 0],
        [0, -1.5] + [0] * 6,
        [-2, -2.5, 0, -3] + [0] * 4,
    ],
    # Of step 5: 2 for version 3, 1 for version 4, 3 for version 2.
    "rl_staleness": [[0, 2, 2, 0, 0, 0, 1, 0], [0, 1] + [0] * 6, [3, 1, 0, 1] + [0] * 4],
    "rl_group": [[0, 1, 1, 0, 0, 0, 1, 0], [0, 1] + [0] * 6, [1, 1, 0, 1] + [0] * 4],
    "rl_episode": [[0, 1, 1, 0, 0, 0, 1, 0], [0, 2] + [0] * 6, [2, 2, 0, 2] + [0] * 4],
    "rl_place": [[0, 1, 2, 0, 0, 0, 3, 0], [0, 1] + [0] * 6, [2, 3, 0, 4] + [0] * 4],
    "rl_truncated": [[0] * 8] * 3,
    "rl_rewards": [[0, 1, 1, 0, 0, 0, 1, 0], [0, 0.25] + [0] * 6, [0.25, 0.25, 0, 0.25] + [0] * 4],
    "rl_turn": [[0, 1, 1, 0, 0, 0, 2, 0], [0, 1] + [0] * 6, [2, 2, 0, 3] + [0] * 4],
    "rl_step": [[0, 5, 5, 0, 0, 0, 5, 0], [0, 5] + [0] * 6, [5, 5, 0, 5] + [0] * 4],
    "rl_group_size": [[0, 2, 2, 0, 0, 0, 2, 0], [0, 2] + [0] * 6, [2, 2, 0, 2] + [0] * 4],
    "rl_sample": [[0] * 8, [0, 1] + [0] * 6, [1, 1, 0, 1] + [0] * 4],
    # 21 22 23; and of both trajectories 31 41 42 43.
    "rl_sample_length": [[0, 3, 3, 0, 0, 0, 3, 0], [0, 4] + [0] * 6, [4, 4, 0, 4] + [0] * 4],
}
EXPECTED["rl_total_reward"] = EXPECTED["rl_rewards"]
EXPECTED |= {f"targets_{n}": EXPECTED[f"inputs_{n}"] for n in ("segmentation", "position")}


def test_what_is_given_neither_trains_nor_has_a_log_prob_or_a_staleness():
    assert sizes(batch().groups) == [7, 2, 4]
    arrays = build_arrays(batch(), rows=3, length=8, pad_id=9)
    assert set(arrays) == set(SPECS) == set(EXPECTED)
    for name, array in arrays.items():
        assert array.dtype == SPECS[name].dtype, name
        np.testing.assert_array_equal(array, EXPECTED[name], err_msg=name)


@pytest.mark.parametrize(("finish", "ended"), [("length", "done"), ("stop", "cut")])
def test_an_episode_that_was_cut_trains_in_none_of_its_turns(finish, ended):
    cut = make_episode(
        sampled([21], [-0.5], [3]),
        Turn(given(61), sampled([22], [-1.0], [4], finish)),
        prompt=PROMPT,
        ended=ended,
    )
    # In an earlier turn "length" is no end of the episode.
    earlier = make_episode(
        sampled([21], [-0.5], [3], "length"),
        Turn(given(61), sampled([22], [-1.0], [4])),
        prompt=PROMPT,
        index=1,
    )
    one = group(cut, earlier, scores=(Score(1.0), Score(0.0)))
    step = TrainBatch(5, (one,), (np.array([0.5, -0.5]),))
    arrays = build_arrays(step, rows=2, length=4)
    masked = build_arrays(step, rows=2, length=4, mask_truncated=True)
    assert arrays["rl_mask"].tolist() == [[0, 1, 0, 1]] * 2
    assert masked["rl_mask"].tolist() == [[0] * 4, [0, 1, 0, 1]]
    assert [n for n in arrays if not np.array_equal(arrays[n], masked[n])] == ["rl_mask"]


def test_a_trajectory_that_is_too_long_says_what_was_given_and_sampled():
    with pytest.raises(
        TrainingError,
        match=r"sample 0 of group 7 needs 7 positions \(given 5 \+ sampled 3 - 1\), rows have 6",
    ):
        build_arrays(batch(), rows=3, length=6)
    with pytest.raises(TrainingError, match=r"hold 3 sequences of 13 positions, rows: 2 of 8"):
        build_arrays(batch(), rows=2, length=8)


def test_advantages_of_two_trajectories_are_those_of_one_episode():
    """Its mean counts once, however many rows it takes; its tokens follow each other."""
    arrays = build_arrays(batch(), rows=3, length=8)
    seen: list[Outcomes] = []

    def slot(outcomes: Outcomes) -> np.ndarray:
        seen.append(outcomes)
        return outcomes.rewards_n - outcomes.rewards_n.mean()

    found_bt = of_batch(slot, arrays, values_bt=np.arange(24.0).reshape(3, 8))
    (outcomes,) = seen
    assert outcomes.rewards_n.tolist() == [1.0, 0.25] and outcomes.lengths_n.tolist() == [3, 4]
    assert outcomes.values_nt.tolist() == [[1, 2, 6, 0], [9, 16, 17, 19]]
    for row, places in enumerate(([1, 2, 6], [1], [0, 1, 3])):
        wanted = np.zeros(8)
        wanted[places] = -0.375 if row else 0.375
        assert found_bt[row].tolist() == wanted.tolist()


def test_what_is_paid_at_tokens_lies_on_them_and_not_in_the_reward_of_the_whole():
    # 1.0 in all, 0.75 of it at the last tokens of the two turns; 0.25, all of it for the whole.
    paid = Score(1.0, token_rewards=(np.array([0.0, 0.25]), np.array([0.5])))
    one = group(two_turns(), two_trajectories(), scores=(paid, Score(0.25)))
    arrays = build_arrays(TrainBatch(5, (one,), batch().advantages), rows=3, length=8)
    assert arrays["rl_token_rewards"].tolist() == [[0, 0, 0.25, 0, 0, 0, 0.5, 0], [0] * 8, [0] * 8]
    assert arrays["rl_rewards"][0].tolist() == [0, 0.25, 0.25, 0, 0, 0, 0.25, 0]
    np.testing.assert_array_equal(arrays["rl_rewards"][1:], EXPECTED["rl_rewards"][1:])
    assert "rl_token_rewards" not in build_arrays(batch(), rows=3, length=8)


@pytest.mark.parametrize("sequences_per_row", [1, 3])
def test_constant_length_counts_trajectories(sequences_per_row):
    """3 and 1 + 3 tokens in three trajectories: N is 3, and not the 2 episodes."""
    section = section_with(
        environment={"name": "x"},
        rollouts={"max_new_tokens": 4, "group_size": 2},
        episodes={"max_turns": 3, "max_tokens": 9},
    )
    assert section.sampled_tokens == 9  # of 3 turns of 4 tokens, which a trajectory cannot hold
    context = BuildContext(Path(), 0, section)
    extension = rlax_objectives.rlax_register_aggregation()["constant_length"]
    for options, longest in ({}, 9), ({"max_tokens": 5}, 5):
        aggregation = extension.build(extension.config_class(**options), context)
        arrays = build_arrays(batch(), rows=3, length=24, sequences_per_row=sequences_per_row)
        mask_bt, none_bt = jnp.asarray(arrays["rl_mask"], jnp.float32), jnp.zeros((3, 24))
        sequence_bt = jnp.where(mask_bt > 0, arrays["targets_segmentation"], 0)
        inputs = TokenInputs(*[none_bt] * 7, mask_bt, sequence_bt, sequences_per_row)
        weights_bt, count = aggregation(inputs)
        assert float(count) == 3
        assert float(weights_bt.sum()) == pytest.approx(7 / longest)
        # With A = 1 the objective is the sum over tokens by N L_max.
        assert float(weights_bt.sum() / count) == pytest.approx(7 / (3 * longest))
