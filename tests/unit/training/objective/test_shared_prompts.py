"""Samples that share a prompt in a row see what they see in a row of their own."""

from dataclasses import replace

import numpy as np
import pytest

from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.base.types import ScoredGroup, TrainBatch
from rlax_plugin.config import Batches, RlaxSection
from rlax_plugin.testing import make_batch, make_episode, make_group, make_prompt, make_sampled
from rlax_plugin.training.objective.batches import (
    ARRAYS,
    HOST_ARRAYS,
    build_arrays,
    positions_taken,
    sizes,
)
from rlax_plugin.training.objective.shared_prompts import ANSWER, Branch, branches, seen_by

TOKENS = ("inputs", "targets")
LAYOUT = [f"{side}{suffix}" for side in TOKENS for suffix in ("", "_position", "_segmentation")]


def group_of(number: int, prompt: list[int], answers: list[list[int]]) -> ScoredGroup:
    asked = make_prompt(str(number), tokens=np.array(prompt, np.int32))
    episodes = tuple(
        make_episode(
            make_sampled(tokens=tokens, logprobs=-np.array(tokens, np.float32) / 8, version=1),
            index=index,
            prompt=asked,
        )
        for index, tokens in enumerate(answers)
    )
    made = make_group([float(index) for index in range(len(answers))], id=number)
    return replace(made, prompt=asked, episodes=episodes)


def test_a_row_holds_the_prompt_once() -> None:
    batch = make_batch(2, [group_of(0, [1, 2, 3, 4], [[10, 11, 12], [20, 21], [30]])])
    arrays = build_arrays(
        batch, rows=2, length=9, pad_id=99, sequences_per_row=2, shared_prompts=True
    )
    found = {name: arrays[name].tolist() for name in (*LAYOUT, "rl_mask", "rl_sample")}
    first, second = ANSWER, 2 * ANSWER
    assert found == {
        "inputs": [[1, 2, 3, 4, 10, 11, 4, 20, 99], [1, 2, 3, 4, 99, 99, 99, 99, 99]],
        "targets": [[2, 3, 4, 10, 11, 12, 20, 21, 99], [2, 3, 4, 30, 99, 99, 99, 99, 99]],
        "inputs_position": [[0, 1, 2, 3, 4, 5, 3, 4, 0], [0, 1, 2, 3, 0, 0, 0, 0, 0]],
        "targets_position": [[0, 1, 2, 3, 4, 5, 3, 4, 0], [0, 1, 2, 3, 0, 0, 0, 0, 0]],
        "inputs_segmentation": [
            [1, 1, 1, *[1 + first] * 3, *[1 + second] * 2, 0],
            [1, 1, 1, 1 + first, 0, 0, 0, 0, 0],
        ],
        "targets_segmentation": [[0, 0, 0, 1, 1, 1, 2, 2, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0]],
        "rl_mask": [[0, 0, 0, 1, 1, 1, 1, 1, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0]],
        "rl_sample": [[0, 0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 2, 0, 0, 0, 0, 0]],
    }
    np.testing.assert_array_equal(
        arrays["rl_behaviour_logprobs"][0, 3:8] * -8, [10, 11, 12, 20, 21]
    )


def random_batch(seed: int) -> TrainBatch:
    rng = np.random.default_rng(seed)
    groups = [
        group_of(
            number,
            rng.integers(0, 3, rng.integers(1, 6)).tolist(),
            [rng.integers(3, 50, rng.integers(1, 6)).tolist() for _ in range(rng.integers(1, 6))],
        )
        for number in range(5)
    ]
    return make_batch(2, groups)


def seen(arrays: dict[str, np.ndarray]) -> list[tuple[object, ...]]:
    """For each trained token: the tokens that it sees, its target, and what it carries."""
    found = []
    for row, t in zip(*np.nonzero(arrays["rl_mask"]), strict=True):
        visible = seen_by(arrays["inputs_segmentation"][row], t)
        tokens = arrays["inputs"][row, visible].tolist()
        positions = arrays["inputs_position"][row, visible].tolist()
        assert positions == list(range(len(tokens)))
        carried = [arrays[name][row, t].item() for name in sorted(arrays) if name not in LAYOUT]
        found.append((tokens, arrays["targets"][row, t].item(), carried))
    return sorted(found, key=repr)


@pytest.mark.parametrize("seed", range(20))
def test_every_token_sees_its_own_sample(seed: int) -> None:
    batch = random_batch(seed)
    alone = build_arrays(batch, rows=30, length=10)
    shared = build_arrays(batch, rows=13, length=20, sequences_per_row=3, shared_prompts=True)
    assert set(shared) == set(ARRAYS | HOST_ARRAYS)
    assert seen(shared) == seen(alone)
    # Every sequence has a number of its own in its row, by which the objective tells them apart.
    numbers = shared["targets_segmentation"]
    of_sequences = {
        (row, numbers[row, t]): shared["rl_episode"][row, t]
        for row, t in zip(*np.nonzero(shared["rl_mask"]), strict=True)
    }
    assert len(of_sequences) == len(set(of_sequences.values())) == len(sizes(batch.groups))
    assert numbers.max() <= 3


def test_only_equal_prompts_are_shared() -> None:
    one = group_of(0, [1, 2], [[3], [4, 5]])
    other = group_of(0, [1, 9], [[3]])
    both = replace(one, episodes=(*one.episodes, *other.episodes))
    assert branches(both) == (Branch(2, 0, 1), Branch(3, 0, 1), Branch(2, 1, 1))


def section_of(**changes: object) -> RlaxSection:
    given = {
        "prompt_source": {"name": "none"},
        "rewards": ({"name": "none"},),
        "rollouts": {
            "group_size": 6,
            "groups_per_step": 2,
            "max_prompt_tokens": 5,
            "max_new_tokens": 3,
        },
        "batches": {"sequences_per_row": 4, "shared_prompts": True},
    }
    return RlaxSection(**given | changes)


def test_rows_are_as_long_as_their_answers_need() -> None:
    section = section_of()
    assert (section.batch_rows, section.row_tokens, section.sequence_tokens) == (4, 17, 8)
    plain = section_of(batches={"sequences_per_row": 4})
    assert (plain.batch_rows, plain.row_tokens, plain.sequence_tokens) == (12, 8, 8)


def test_positions_that_are_taken() -> None:
    groups = [group_of(number, [1, 2, 3, 4], [[5, 6, 7]] * 6) for number in range(2)]
    # In each of four rows a prompt of 3 positions, and 6 x 2 answers of 3 positions.
    assert positions_taken(section_of(), groups) == 4 * 3 + 12 * 3
    plain = section_of(batches={"sequences_per_row": 4})
    assert positions_taken(plain, groups) == 12 * 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"environment": {"name": "calculator"}},
            "rlax.batches.shared_prompts = True: must be false with rlax.environment calculator",
        ),
        (
            {"signals": ({"name": "critic"},)},
            "rlax.batches.shared_prompts = True: must be false with rlax.signals critic",
        ),
        (
            {"batches": {"sequences_per_row": 4, "shared_prompts": True, "rows": 1}},
            "rlax.batches.rows = 1: must be at least 2, group_size = 6 divided by",
        ),
    ],
)
def test_what_cannot_be_shared(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        section_of(**changes)
    assert said in str(error.value)


@pytest.mark.parametrize("in_row", [1, 2**15])
def test_a_row_needs_several_answers(in_row: int) -> None:
    with pytest.raises(ConfigError, match="must be from 2 to 32767 with shared_prompts"):
        Batches(sequences_per_row=in_row, shared_prompts=True)


def test_a_batch_that_does_not_fit_is_an_error() -> None:
    batch = make_batch(2, [group_of(0, [1, 2, 3, 4], [[10, 11, 12], [20, 21], [30]])])
    with pytest.raises(TrainingError, match="rows: 1 of 9 positions and 2 sequences at most"):
        build_arrays(batch, rows=1, length=9, sequences_per_row=2, shared_prompts=True)
