from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sections import section_with

from rlax_plugin.config import Algorithm
from rlax_plugin.errors import TrainingError
from rlax_plugin.objective.batches import ARRAYS, HOST_ARRAYS, batch_of, build_batch, place, sizes
from rlax_plugin.types import Group, Prompt, Rollout

SPECS = ARRAYS | HOST_ARRAYS


def rollout(index, tokens, logprobs, versions, reward=1.0, group_id=7, finish_reason="stop"):
    return Rollout(
        group_id=group_id,
        index=index,
        seed=index,
        tokens=np.array(tokens, np.int32),
        logprob_full=np.array(logprobs, np.float32),
        logprob_sampled=np.zeros(len(tokens), np.float32),
        versions=np.array(versions, np.int32),
        finish_reason=finish_reason,
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
        "rl_group": [[0, 0, 1, 1, 0, 0], [0] * 6, [0] * 6],
        "rl_rewards": [[0, 0, 1.0, 1.0, 0, 0], [0] * 6, [0] * 6],
    }
    assert set(batch.arrays) == set(SPECS) == set(expected)
    for name, array in batch.arrays.items():
        assert array.dtype == SPECS[name].dtype, name
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


def test_packed_samples_restart_positions_and_count_segments_as_worked_out_by_hand():
    """Sizes 4 3 | 1: the longest lies first, the shortest behind it, the middle one is alone."""
    groups = [example(), group([rollout(0, [41], [-2], [4], 0.25, 8)], [-0.5], (5,), 8)]
    batch = build_batch(5, groups, rows=3, length=6, pad_id=99, sequences_per_row=2)
    expected = {
        "inputs": [[11, 12, 13, 21, 5, 99], [11, 12, 13, 99, 99, 99], [99] * 6],
        "targets": [[12, 13, 21, 22, 41, 99], [12, 13, 31, 99, 99, 99], [99] * 6],
        "inputs_position": [[0, 1, 2, 3, 0, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
        "inputs_segmentation": [[1, 1, 1, 1, 2, 0], [1, 1, 1, 0, 0, 0], [0] * 6],
        "rl_mask": [[0, 0, 1, 1, 1, 0], [0] * 6, [0] * 6],
        "rl_advantages": [[0, 0, 1.5, 1.5, -0.5, 0], [0] * 6, [0] * 6],
        "rl_behaviour_logprobs": [[0, 0, -0.5, -0.25, -2.0, 0], [0] * 6, [0] * 6],
        "rl_staleness": [[0, 0, 2, 1, 1, 0], [0] * 6, [0] * 6],
        "rl_group": [[0, 0, 1, 1, 2, 0], [0] * 6, [0] * 6],
        "rl_rewards": [[0, 0, 1.0, 1.0, 0.25, 0], [0] * 6, [0] * 6],
    }
    for side in ("position", "segmentation"):
        expected[f"targets_{side}"] = expected[f"inputs_{side}"]
    assert set(batch.arrays) == set(expected)
    for name, array in batch.arrays.items():
        assert array.dtype == SPECS[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_truncated_samples_train_no_token_but_their_rewards_count():
    cut = rollout(0, [1, 2], [-1, -2], [0, 0], reward=0.5, finish_reason="length")
    groups = [group([cut, rollout(1, [3], [-3], [0])], [-1.0, 1.0], prompt=(9,))]
    arrays = build_batch(1, groups, rows=2, length=3).arrays
    masked = build_batch(1, groups, rows=2, length=3, mask_truncated=True).arrays
    np.testing.assert_array_equal(arrays["rl_mask"], [[1, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(masked["rl_mask"], [[0, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(masked["rl_rewards"], [[0.5, 0.5, 0], [1, 0, 0]])
    np.testing.assert_array_equal(masked["rl_group"], [[1, 1, 0], [1, 0, 0]])
    differing = [n for n in arrays if not np.array_equal(arrays[n], masked[n])]
    assert differing == ["rl_mask"]


def test_a_batch_has_the_configs_shape_and_the_presets_mask():
    section = section_with(
        rollouts={
            "group_size": 2,
            "groups_per_step": 1,
            "max_prompt_tokens": 3,
            "max_new_tokens": 2,
        },
        batches={"rows": 2, "sequences_per_row": 2},
    )
    groups = [group([rollout(0, [4], [-1], [0], finish_reason="length")] * 2, [1.0, -1.0], (1, 2))]
    arrays = batch_of(section, Algorithm(mask_truncated=True), 1, groups).arrays
    np.testing.assert_array_equal(arrays["targets_segmentation"], [[1, 1, 2, 2, 0], [0] * 5])
    assert not arrays["rl_mask"].any()
    assert batch_of(section, Algorithm(), 1, groups).arrays["rl_mask"].sum() == 2


# --- placement -----------------------------------------------------------------------------------


def test_samples_are_placed_first_fit_decreasing_with_ties_in_order():
    # By size: 5 (sample 1) opens row 0, 4 (2) row 1, 3 (0) goes behind the 5, 3 (4) behind the 4,
    # and 2 (3) fits neither row 0 (8 of 8) nor, with two samples there, row 1.
    assert place([3, 5, 4, 2, 3], 3, 8, 2) == [
        (0, 5, 2),
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
        (1, 4, 2),
    ]
    assert place([3, 5, 4, 2, 3], 2, 8, 2) is None  # too few rows, not too few positions
    assert place([3, 5, 4, 2, 3], 3, 4, 2) is None  # one is longer than a row
    assert place([], 1, 4, 2) == []


LAYOUTS = st.tuples(
    st.lists(st.integers(1, 9), max_size=14),
    st.integers(1, 6),
    st.integers(6, 20),
    st.integers(1, 5),
)


@given(LAYOUTS)
def test_nothing_overlaps_nothing_is_lost_and_rows_hold_it(layout):
    sizes_n, rows, length, sequences_per_row = layout
    places = place(sizes_n, rows, length, sequences_per_row)
    assert places == place(sizes_n, rows, length, sequences_per_row)
    if len(sizes_n) <= rows and max(sizes_n, default=0) <= length:
        assert places is not None  # a row for each
    if places is None:
        return
    assert len(places) == len(sizes_n)
    covered = np.zeros((rows, length), int)
    for size, (row, start, _) in zip(sizes_n, places, strict=True):
        assert 0 <= row < rows and start >= 0 and start + size <= length
        covered[row, start : start + size] += 1
    assert covered.max(initial=0) <= 1 and covered.sum() == sum(sizes_n)
    for row in range(rows):
        in_row = sorted((start, segment) for r, start, segment in places if r == row)
        assert [segment for _, segment in in_row] == list(range(1, len(in_row) + 1))
        assert len(in_row) <= sequences_per_row
        used = covered[row].sum()
        assert covered[row, :used].all()  # without gaps


@given(st.lists(st.integers(1, 9), max_size=8))
def test_one_sample_per_row_lies_in_its_own_row(sizes_n):
    assert place(sizes_n, 8, 9, 1) == [(row, 0, 1) for row in range(len(sizes_n))]


def test_sizes_are_those_of_inputs():
    assert sizes([example(), group([rollout(0, [4], [-4], [0])], [0.0], (5,))]) == [4, 3, 1]


# --- rejected -------------------------------------------------------------------------------------


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
def test_samples_that_cannot_be_right_are_rejected(broken, message):
    with pytest.raises(TrainingError, match=message):
        build_batch(5, [broken(example())], rows=2, length=8)


def test_samples_that_do_not_fit_are_rejected():
    with pytest.raises(TrainingError, match=r"sample 0 of group 7 needs 4 positions .* have 3"):
        build_batch(5, [example()], rows=2, length=3)
    with pytest.raises(TrainingError, match=r"groups \[7\] hold 2 samples .*, rows: 1 of 8"):
        build_batch(5, [example()], rows=1, length=8)
