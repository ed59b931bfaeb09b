"""Fakes reject what a run would never give them; builders make records that fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Canary, Score, Turn, Unscored
from rlax_plugin.testing import (
    FakeTrainerPort,
    make_arrays,
    make_batch,
    make_episode,
    make_group,
    make_prompt,
    make_sampled,
)
from rlax_plugin.testing.fakes import CANARY_TOKENS

WEIGHTS = {"w": np.zeros(2, np.float32)}


def test_a_group_has_a_sample_for_every_reward() -> None:
    group = make_group((1.0, None, 0.25), lengths=(1, 2, 3), version=4, id=7)
    assert [episode.tokens for episode in group.episodes] == [1, 2, 3]
    assert group.id == 7 and [episode.index for episode in group.episodes] == [0, 1, 2]
    np.testing.assert_array_equal(group.rewards, [1.0, np.nan, 0.25])
    assert group.scores == (Score(1.0, (1.0,)), Unscored("it raised"), Score(0.25, (0.25,)))
    assert group.oldest_version == group.newest_version == 4
    assert len({s.seed for s in group.sampled}) == 3
    assert all(
        turn.given is group.prompt.tokens
        for episode in group.episodes
        for trajectory in episode.trajectories
        for turn in trajectory.turns
    )


def test_a_batch_centres_rewards_and_masks_what_failed() -> None:
    batch = make_batch(5, [make_group((1.0, 0.0, None), lengths=(2, 3, 4), version=3)])
    assert [a.tolist() for a in batch.advantages] == [[0.5, -0.5, 0.0]]
    arrays = make_arrays(batch)
    assert arrays["rl_mask"].sum(axis=1).tolist() == [2, 3, 0]
    assert arrays["rl_advantages"].max(axis=1).tolist() == [0.5, 0.0, 0.0]
    assert arrays["rl_staleness"].max() == 2


def test_arrays_of_a_sample_fit_its_tokens() -> None:
    sample = make_sampled(tokens=[9, 8], finish="length")
    assert sample.tokens.tolist() == [9, 8] and sample.tokens.dtype == np.int32
    assert sample.logprobs.shape == sample.versions.shape == (2,)


def test_an_episode_has_the_turns_it_is_given() -> None:
    prompt = make_prompt("12")
    tool = Turn(np.array([50], np.int32), make_sampled(2, version=3, workers=("w1",)))
    episode = make_episode(make_sampled(4, workers=("w0",)), tool, prompt=prompt, index=2)
    (trajectory,) = episode.trajectories
    assert trajectory.turns[0].given is prompt.tokens and trajectory.turns[1] is tool
    assert (episode.index, episode.tokens, trajectory.length) == (2, 6, 2 + 4 + 1 + 2)
    assert episode.workers == ("w0", "w1") and not episode.truncated
    assert make_episode(make_sampled(finish="length")).truncated
    assert make_episode(ended="cut").truncated
    assert not make_episode(make_sampled(finish="length"), tool).truncated
    group = make_group((1.0,))
    whole = dataclasses.replace(group, episodes=(episode,))
    assert (whole.oldest_version, whole.newest_version) == (0, 3)


def published(step: int = 0) -> FakeTrainerPort:
    port = FakeTrainerPort()
    port.publish(step, WEIGHTS)
    return port


def test_the_calls_of_a_sound_trainer_are_taken() -> None:
    port = published(4)
    for step in (5, 6):
        assert port.next_batch(step)["rl_mask"].any()
        assert port.decide(step) == (False, False)
        port.before_checkpoint(step)
        port.publish(step, {"w": np.full(2, step, np.float32)})
        port.step_done(step, {"loss": 0.5})
    port.close()
    assert port.last_step == 6 and sorted(port.published) == [4, 5, 6]
    assert port.metrics == {5: {"loss": 0.5}, 6: {"loss": 0.5}}


def test_calls_out_of_order_are_rejected() -> None:
    def rejected(message: str):
        return pytest.raises(TrainingError, match=message)

    with rejected(r"next_batch\(1\): publish what training starts from first"):
        FakeTrainerPort().next_batch(1)
    with rejected(r"next_batch\(2\): the next step is 1"):
        published().next_batch(2)
    port = published()
    port.next_batch(1)
    with rejected(r"next_batch\(2\): step 1 is not done"):
        port.next_batch(2)
    with rejected(r"publish\(2\): the weights are those after step 1"):
        port.publish(2, WEIGHTS)
    port.decide(1)
    with rejected(r"decide\(1\): it is decided already"):
        port.decide(1)
    with rejected(r"step_done\(2\): step 1 is being trained"):
        port.step_done(2, {})
    port.step_done(1, {})
    with rejected(r"next_batch\(2\): version 1 is not published"):
        port.next_batch(2)
    with rejected(r"publish\(1\): .*\(3,\)"):
        port.publish(1, {"w": np.zeros(3, np.float32)})
    with rejected(r"before_checkpoint\(7\): the step is 1"):
        port.before_checkpoint(7)


def test_a_port_knows_the_parts_that_a_trainer_does_not_hand_over_again():
    port = FakeTrainerPort(stop_after=1)
    with pytest.raises(TrainingError, match="part 'base' was not published before"):
        FakeTrainerPort().publish(0, None)
    port.publish(0, WEIGHTS, parts={"adapter": {"a": np.zeros(2, np.float32)}})
    port.next_batch(1)
    port.publish(1, None, parts={"adapter": {"a": np.ones(2, np.float32)}})
    assert sorted(port.published[1]) == ["a", *WEIGHTS]
    assert port.published[1]["a"].tolist() == [1, 1] and port.published[0]["a"].tolist() == [0, 0]
    assert port.published[1]["w"].tolist() == WEIGHTS["w"].tolist()


def test_what_shows_only_at_the_end_is_found() -> None:
    port = FakeTrainerPort()
    weights = {"w": np.zeros(2, np.float32)}
    port.publish(0, weights)
    weights["w"] += 1
    with pytest.raises(TrainingError, match="'w' was changed afterwards; hand over fresh buffers"):
        port.close()
    port = published()
    port.next_batch(1)
    with pytest.raises(TrainingError, match="step 1 not done"):
        port.close()


def test_a_canary_must_be_computable() -> None:
    for tokens, logprobs, told in (
        (CANARY_TOKENS[1:], np.zeros(4), "of tokens"),
        (CANARY_TOKENS, np.full(4, np.nan), "log-probs are"),
    ):
        with pytest.raises(TrainingError, match=told):
            FakeTrainerPort().publish(0, WEIGHTS, Canary(tokens, logprobs, 1e-4))
