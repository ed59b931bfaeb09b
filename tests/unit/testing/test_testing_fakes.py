"""Fakes reject what a run would never give them."""

import numpy as np
import pytest

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import Canary
from rlax_plugin.testing import FakeTrainerPort
from rlax_plugin.testing.fakes import CANARY_TOKENS

WEIGHTS = {"w": np.zeros(2, np.float32)}


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
    port.publish(1, WEIGHTS)
    with rejected(r"publish\(1\): it is published already"):
        port.publish(1, WEIGHTS)
    stopped = FakeTrainerPort(stop_after=0)
    stopped.publish(0, WEIGHTS)
    assert stopped.decide(0).stop
    with rejected(r"next_batch\(1\): a stop was decided"):
        stopped.next_batch(1)


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
