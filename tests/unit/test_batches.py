from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlax_plugin.batches import ARRAYS, build_batch
from rlax_plugin.errors import TrainingError
from rlax_plugin.types import Group, Prompt, Rollout


def rollout(index, tokens, logprobs, versions, reward=1.0, group_id=7):
    return Rollout(
        group_id=group_id,
        index=index,
        seed=index,
        tokens=np.array(tokens, np.int32),
        logprob_full=np.array(logprobs, np.float32),
        logprob_sampled=np.zeros(len(tokens), np.float32),
        versions=np.array(versions, np.int32),
        finish_reason="stop",
        reward=reward,
        reward_error=None if reward is not None else "timeout",
    )


def group(rollouts, advantages, prompt=(11, 12, 13), group_id=7):
    question = Prompt("id", np.array(prompt, np.int32), "text", "reference")
    return Group(group_id, 1, question, tuple(rollouts), np.array(advantages, np.float64))


def example():
    """Prompt 11 12 13; completions 21 22 (versions 3 and 4) and 31, the second errored."""
    return group(
        [
            rollout(0, [21, 22], [-0.5, -0.25], [3, 4]),
            rollout(1, [31], [-9.0], [4], reward=None),
        ],
        [1.5, 0.0],
    )


def test_rows_are_shifted_masked_and_stamped_as_worked_out_by_hand():
    batch = build_batch(5, [example()], rows=3, length=6, pad_id=99)
    expected = {
        # sequence 11 12 13 21 22 -> 4 positions; 11 12 13 31 -> 3; the third row is padding.
        "inputs": [[11, 12, 13, 21, 99, 99], [11, 12, 13, 99, 99, 99], [99] * 6],
        "targets": [[12, 13, 21, 22, 99, 99], [12, 13, 31, 99, 99, 99], [99] * 6],
        "inputs_position": [[0, 1, 2, 3, 4, 5]] * 3,
        "targets_position": [[0, 1, 2, 3, 4, 5]] * 3,
        "inputs_segmentation": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6],
        "targets_segmentation": [[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6],
        # Position 2 predicts the first completion token, 21.
        "rl_mask": [[0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6],
        "rl_advantages": [[0, 0, 1.5, 1.5, 0, 0], [0] * 6, [0] * 6],
        "rl_behaviour_logprobs": [[0, 0, -0.5, -0.25, 0, 0], [0] * 6, [0] * 6],
        "rl_staleness": [[0, 0, 2, 1, 0, 0], [0] * 6, [0] * 6],  # 5 - 3, 5 - 4
    }
    assert set(batch.arrays) == set(ARRAYS) == set(expected)
    for name, array in batch.arrays.items():
        assert array.dtype == ARRAYS[name], name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert batch.step == 5 and [g.id for g in batch.groups] == [7]


def test_groups_follow_each_other_and_the_longest_sample_may_fill_its_row():
    groups = [
        group([rollout(0, [1, 2, 3], [-1, -2, -3], [0] * 3)], [0.5]),
        group([rollout(0, [4], [-4], [0], group_id=8)], [-0.5], prompt=(5,), group_id=8),
    ]
    arrays = build_batch(1, groups, rows=2, length=5).arrays
    np.testing.assert_array_equal(arrays["inputs"], [[11, 12, 13, 1, 2], [5, 0, 0, 0, 0]])
    np.testing.assert_array_equal(arrays["rl_mask"], [[0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(arrays["rl_advantages"][:, [2, 0]], [[0.5, 0], [0, -0.5]])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda g: replace(g, advantages=None), "group 7 lacks"),
        (lambda g: replace(g, advantages=np.array([np.nan, 0])), "sample 0 of group 7 has an adv"),
        (
            lambda g: replace(g, rollouts=(g.rollouts[0], rollout(1, [], [], []))),
            "sample 1 of group 7 has an empty",
        ),
        (
            lambda g: replace(g, rollouts=(rollout(0, [1], [-np.inf], [0]), g.rollouts[1])),
            "sample 0 of group 7 has .* not finite",
        ),
        (
            lambda g: replace(g, rollouts=(rollout(0, [1, 2], [-1], [0, 0]), g.rollouts[1])),
            "2 tokens, 1 log-probs",
        ),
        (
            lambda g: replace(g, rollouts=(rollout(0, [1], [-1], [5]), g.rollouts[1])),
            "version 5, which is not published before step 5",
        ),
    ],
)
def test_samples_that_cannot_be_right_are_refused(broken, message):
    with pytest.raises(TrainingError, match=message):
        build_batch(5, [broken(example())], rows=2, length=8)


def test_samples_that_do_not_fit_are_refused():
    with pytest.raises(TrainingError, match=r"sample 0 of group 7 needs 4 positions .* have 3"):
        build_batch(5, [example()], rows=2, length=3)
    with pytest.raises(TrainingError, match=r"groups \[7\] hold 2 samples, rows: 1"):
        build_batch(5, [example()], rows=1, length=8)
