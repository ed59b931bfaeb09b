"""Batches laid out by hand: packing, masks, placement, and what is rejected."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sections import section_with

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import (
    Episode,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
)
from rlax_plugin.config import Algorithm
from rlax_plugin.testing import make_prompt, make_sampled
from rlax_plugin.training.objective.batches import ARRAYS, HOST_ARRAYS, arrays_of, build_arrays
from rlax_plugin.training.objective.placing import place

SPECS = ARRAYS | HOST_ARRAYS


def turn(given, tokens, logprobs, versions, finish="stop"):
    sampled = make_sampled(
        tokens=tokens,
        logprobs=np.array(logprobs, np.float32),
        versions=np.array(versions, np.int32),
        finish=finish,
    )
    return Turn(np.array(given, np.int32), sampled)


PROMPT = (11, 12, 13)


def group(*answers, number=7):
    """A group of (reward, turn) or (reward, trajectories); a reward of None: scoring failed."""
    episodes, scores = [], []
    for index, (reward, found) in enumerate(answers):
        trajectories = (Trajectory((found,)),) if isinstance(found, Turn) else found
        episodes.append(Episode(index, trajectories))
        scores.append(Unscored("timeout") if reward is None else Score(reward, (reward,)))
    prompt = make_prompt(tokens=np.array(PROMPT, np.int32))
    return ScoredGroup(number, 1, prompt, tuple(episodes), tuple(scores))


def batch(step, *groups, advantages):
    return TrainBatch(step, groups, tuple(np.array(a, np.float64) for a in advantages))


FIRST, FAILED = turn(PROMPT, [21, 22], [-0.5, -0.25], [3, 4]), turn(PROMPT, [31], [-9.0], [4])


def example():
    """Prompt 11 12 13; completions 21 22 (versions 3 and 4) and 31, the second errored."""
    return group((1.0, FIRST), (None, FAILED))


def assert_arrays(arrays, expected):
    assert set(arrays) == set(SPECS) == set(expected)
    for name, array in arrays.items():
        assert array.dtype == SPECS[name].dtype, name
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_packed_samples_restart_positions_and_count_segments_as_worked_out_by_hand():
    """Sizes 4 3 | 1: the longest lies first, the shortest behind it, the middle one is alone."""
    second = group((0.25, turn((5,), [41], [-2], [4])), number=8)
    one = batch(5, example(), second, advantages=[[1.5, 0.0], [-0.5]])
    arrays = build_arrays(one, rows=3, length=6, pad_id=99, sequences_per_row=2)
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
        "rl_episode": [[0, 0, 1, 1, 3, 0], [0] * 6, [0] * 6],  # the second one is not scored
        "rl_rewards": [[0, 0, 1.0, 1.0, 0.25, 0], [0] * 6, [0] * 6],
        "rl_place": [[0, 0, 1, 2, 1, 0], [0] * 6, [0] * 6],
        "rl_truncated": [[0] * 6] * 3,
        "rl_turn": [[0, 0, 1, 1, 1, 0], [0] * 6, [0] * 6],
        "rl_group_size": [[0, 0, 1, 1, 1, 0], [0] * 6, [0] * 6],
        "rl_sample": np.zeros((3, 6)),
        "rl_sample_length": [[0, 0, 2, 2, 1, 0], [0] * 6, [0] * 6],
        "rl_total_reward": [[0, 0, 1.0, 1.0, 0.25, 0], [0] * 6, [0] * 6],
        "rl_step": [[0, 0, 5, 5, 5, 0], [0] * 6, [0] * 6],
    }
    for side in ("position", "segmentation"):
        expected[f"targets_{side}"] = expected[f"inputs_{side}"]
    assert_arrays(arrays, expected)


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
    answered = group(*[(1.0, turn((1, 2), [4], [-1], [0], finish="length"))] * 2)
    one = batch(1, answered, advantages=[[1.0, -1.0]])
    arrays = arrays_of(section, Algorithm(mask_truncated=True), one)
    np.testing.assert_array_equal(arrays["targets_segmentation"], [[1, 1, 2, 2, 0], [0] * 5])
    assert not arrays["rl_mask"].any()
    assert arrays_of(section, Algorithm(), one)["rl_mask"].sum() == 2


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


@pytest.mark.property
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


# --- rejected -------------------------------------------------------------------------------------


def with_first(*found, score=1.0):
    return group((score, *found), (None, FAILED))


@pytest.mark.parametrize(
    ("broken", "advantages", "message"),
    [
        (example(), [], "1 groups with advantages for 0"),
        (example(), [[1.5]], "group 7 lacks"),
        (example(), [[np.nan, 0.0]], "sample 0 of group 7 has an adv"),
        (
            group((1.0, FIRST), (None, turn(PROMPT, [], [], []))),
            [[1.5, 0.0]],
            "sample 1 of group 7 has an empty",
        ),
        (with_first((Trajectory(()),)), [[1.5, 0.0]], "sample 0 of group 7 has an empty"),
        (
            with_first((Trajectory((FIRST, turn((5,), [], [], []))),)),
            [[1.5, 0.0]],
            "sample 0 of group 7 has an empty",
        ),
        (
            with_first(turn(PROMPT, [1], [-np.inf], [0])),
            [[1.5, 0.0]],
            "sample 0 of group 7 has .* not finite",
        ),
        (with_first(turn(PROMPT, [1, 2], [-1], [0, 0])), [[1.5, 0.0]], "2 tokens, 1 log-probs"),
        (with_first(turn(PROMPT, [1], [-1], [5])), [[1.5, 0.0]], "version 5, which is not publ"),
    ],
)
def test_samples_that_cannot_be_right_are_rejected(broken, advantages, message):
    with pytest.raises(TrainingError, match=message):
        build_arrays(batch(5, broken, advantages=advantages), rows=2, length=8)
