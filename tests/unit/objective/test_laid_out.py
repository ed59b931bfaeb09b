"""Every token of a batch of any shape has the values of its turn, sample and group."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from rlax_plugin.objective.batches import ARRAYS, HOST_ARRAYS, build_arrays, sizes
from rlax_plugin.objective.placing import place
from rlax_plugin.testing import make_prompt
from rlax_plugin.types import (
    Episode,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
)

STEP, LENGTH = 7, 24
PROMPT = make_prompt(tokens=np.array([1, 2], np.int32))


def turns() -> st.SearchStrategy[Turn]:
    def turn(numbers: list[int], given: int, finish: str) -> Turn:
        sampled = Sampled(
            seed=0,
            tokens=np.array(numbers, np.int32),
            logprobs=-np.array(numbers, np.float32) / 7,
            versions=np.array(numbers, np.int32) % STEP,
            finish=finish,
        )
        return Turn(np.arange(50, 50 + given, dtype=np.int32), sampled)

    numbers = st.lists(st.integers(3, 40), min_size=1, max_size=3)
    return st.builds(turn, numbers, st.integers(1, 3), st.sampled_from(["stop", "length"]))


@st.composite
def episodes(draw: st.DrawFn, index: int) -> tuple[Episode, Score | Unscored, np.ndarray]:
    trajectories = tuple(
        Trajectory(tuple(draw(st.lists(turns(), min_size=1, max_size=3))))
        for _ in range(draw(st.integers(1, 2)))
    )
    found = [turn.sampled.tokens for one in trajectories for turn in one.turns]
    order = draw(st.sampled_from([(), tuple(draw(st.permutations(range(len(found)))))]))
    episode = Episode(
        index, trajectories, order=order, ended=draw(st.sampled_from(["done", "cut"]))
    )
    count = sum(map(len, found))
    advantage = np.float64(draw(st.integers(-9, 9))) / 3
    if draw(st.booleans()):
        advantage = np.arange(count) / 3 - 1
    if draw(st.integers(0, 3)) == 0:
        return episode, Unscored("timeout"), advantage
    paid = tuple(np.arange(len(tokens)) / 4 for tokens in found) if draw(st.booleans()) else ()
    total = draw(st.integers(-9, 9)) / 10
    return episode, Score(total, (total, 1.0), token_rewards=paid), advantage


@st.composite
def batches(draw: st.DrawFn) -> TrainBatch:
    groups, advantages = [], []
    for number in range(draw(st.integers(0, 3))):
        found = [draw(episodes(index)) for index in range(draw(st.integers(1, 3)))]
        answered, scores, own = zip(*found, strict=True)
        temperature = draw(st.sampled_from([0.5, 1.25]))
        group = ScoredGroup(40 + number, 1, PROMPT, answered, scores, temperature=temperature)
        groups.append(group)
        advantages.append(own)
    return TrainBatch(STEP, tuple(groups), tuple(advantages))


@pytest.mark.property
@settings(max_examples=examples(60), deadline=None)
@given(batches(), st.booleans(), st.sampled_from([1, 4]))
def test_every_token_has_the_values_of_its_turn(batch, mask_truncated, per_row) -> None:
    rows = max(1, len(sizes(batch.groups)))
    arrays = build_arrays(
        batch,
        rows=rows,
        length=LENGTH,
        pad_id=9,
        sequences_per_row=per_row,
        mask_truncated=mask_truncated,
        reward_parts=2,
        temperatures=True,
    )
    expected = {name: np.zeros_like(array) for name, array in arrays.items()}
    for side in ("inputs", "targets"):
        expected[side] += 9
        expected[f"{side}_position"] += np.arange(LENGTH)
    expected["rl_temperature"] += 1
    places = iter(place(sizes(batch.groups), rows, LENGTH, per_row) or ())
    sample = 0
    for number, (group, advantages) in enumerate(zip(batch.groups, batch.advantages, strict=True)):
        scored = sum(isinstance(score, Score) for score in group.scores)
        for episode, score, advantage in zip(group.episodes, group.scores, advantages, strict=True):
            sample, turn_number, done = sample + 1, 0, 0
            in_time = [int(token) for token in episode.tokens_in_time]
            for trajectory in episode.trajectories:
                row, start, segment = next(places)
                tokens: list[tuple[int, tuple[int, int] | None]] = []  # and (turn, place in it)
                for turn in trajectory.turns:
                    tokens += [(int(token), None) for token in turn.given]
                    for place_in_turn, token in enumerate(turn.sampled.tokens):
                        tokens.append((int(token), (turn_number, place_in_turn)))
                    turn_number += 1
                for t, ((given_token, _), (token, at)) in enumerate(
                    itertools.pairwise(tokens), start
                ):
                    values = {"inputs": given_token, "targets": token}
                    for side in ("inputs", "targets"):
                        values |= {f"{side}_position": t - start, f"{side}_segmentation": segment}
                    if at is not None and isinstance(score, Score):
                        sampled = list(episode.sampled)[at[0]]
                        values |= {
                            "rl_mask": not (mask_truncated and episode.truncated),
                            "rl_advantages": advantage if advantage.ndim == 0 else advantage[done],
                            "rl_behaviour_logprobs": sampled.logprobs[at[1]],
                            "rl_staleness": STEP - sampled.versions[at[1]],
                            "rl_group": number + 1,
                            "rl_group_size": scored,
                            "rl_sample": episode.index,
                            "rl_sample_length": len(in_time),
                            "rl_total_reward": score.total,
                            "rl_step": STEP,
                            "rl_episode": sample,
                            "rl_rewards": score.at_the_end,
                            "rl_place": 1 + in_time.index(done),
                            "rl_truncated": episode.truncated,
                            "rl_turn": 1 + (episode.order[at[0]] if episode.order else at[0]),
                            "rl_temperature": group.temperature,
                            "rl_reward_parts": score.parts,
                        }
                        if "rl_token_rewards" in arrays:
                            paid = score.token_rewards
                            values["rl_token_rewards"] = paid[at[0]][at[1]] if paid else 0.0
                            values["rl_paid_at_tokens"] = score.total - score.at_the_end
                    done += at is not None
                    for name, value in values.items():
                        expected[name][row, t] = value
    assert arrays.keys() >= (ARRAYS | HOST_ARRAYS).keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        if name in ARRAYS | HOST_ARRAYS:
            assert array.dtype == (ARRAYS | HOST_ARRAYS)[name].dtype
