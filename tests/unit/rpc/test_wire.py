"""What crosses the wire arrives as it was sent, and nonsense does not pass."""

import math
import re
from typing import Any

import numpy as np
import pytest
from sections import section_with

from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams
from rlax_plugin.rollout.batching.jobs import SIDE_CHANNELS, TRUNCATED_LOGPROBS
from rlax_plugin.rollout.worker.rollout_service import accepted
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import (
    key_from_proto,
    key_to_proto,
    request_from_proto,
    request_to_proto,
)

SEEDS = (2**64 - 1, 5)


def generated(index: int, tokens: int, finish: str | None = None, **changes) -> Sampled:
    ids, logprobs = 10 + np.arange(tokens, dtype=np.int32), np.full(tokens, -0.5, np.float32)
    fields = {"seed": SEEDS[index], "tokens": ids, "logprobs": logprobs, "finish": finish}
    fields |= {"versions": np.full(tokens, 6, np.int32)}
    fields |= {"side": {TRUNCATED_LOGPROBS: logprobs * 2}}
    return Sampled(**(fields | changes))


def request(**changes) -> Request:
    sampling = SamplingParams(0.5, 3, 0.75, 4, (1, 9), ("\n", "</é>"))
    fields = {"key": Key("evaluate", 3), "attempt": 2, "context": np.array([7, 8], np.int32)}
    fields |= {"seeds": SEEDS, "sampling": sampling, "min_version": 6, "session": "s"}
    return Request(**(fields | changes))


def received(sent: Request) -> Request:
    message = pb.Request.FromString(request_to_proto(sent).SerializeToString())
    return request_from_proto(message, SIDE_CHANNELS)


def test_requests_survive_the_wire():
    sent = request()
    found = received(sent)
    assert found.context.tolist() == [7, 8] and found.context.dtype == np.int32
    for name in ("key", "attempt", "seeds", "sampling", "min_version", "session"):
        assert getattr(found, name) == getattr(sent, name)
    assert found.resume == () and found.exactly is None


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (Key("train", 7), "group 7"),
        (Key("train", 7, 0, 0, 1), "group 7, sample 0, turn 1"),
        (Key("train", 2**40, 3, 2, 1), "group 1099511627776, sample 3, trajectory 2, turn 1"),
        (Key("evaluate", 0), "evaluation group 0"),
        (Key("serve", 5, 1, 0, 4), "client's group 5, sample 1, turn 4"),
    ],
)
def test_keys_survive_the_wire_and_have_a_text(key, text):
    assert key_from_proto(pb.Key.FromString(key_to_proto(key).SerializeToString())) == key
    assert str(key) == text


def rejection(*asked: Any) -> str | None:
    try:
        accepted(*asked)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("purpose", [3, 77, -1, -3, -9])
def test_purposes_that_do_not_exist_are_rejected(purpose):
    message = request_to_proto(request())
    message.key.purpose = purpose
    with pytest.raises(ValueError, match=f"purpose {purpose} does not exist"):
        key_from_proto(message.key)
    found = rejection(message, section_with(), 64, SIDE_CHANNELS)
    assert found == f"group 3: it is garbled: purpose {purpose} does not exist"


def test_what_is_to_be_resumed_survives_the_wire():
    sent = request(resume=(generated(0, 3), generated(1, 4, "length")))
    found = received(sent)
    assert [s.finish for s in found.resume] == [None, "length"]
    assert [s.seed for s in found.resume] == [SEEDS[0], SEEDS[1]]
    for got, was in zip(found.resume, sent.resume, strict=True):
        for name in ("tokens", "logprobs", "versions"):
            assert getattr(got, name).tobytes() == getattr(was, name).tobytes()
        assert got.side.keys() == {TRUNCATED_LOGPROBS}
        assert got.side[TRUNCATED_LOGPROBS].tolist() == (2 * was.logprobs).tolist()


@pytest.mark.parametrize(
    ("place", "most"), [((0, 0), 4), ((0, 1), 4 + 12 - 1), ((1, 0), 4 + 12 - 1)]
)
def test_what_is_given_behind_the_context_of_a_further_trajectory_fits(place, most):
    """An environment begins one with as many tokens as a prompt may have, and gives more."""
    trajectory, turn = place
    section = section_with(
        environment={"name": "x"},
        rollouts={"max_prompt_tokens": 4, "max_new_tokens": 8, "slots": 16},
        episodes={"max_tokens": 12},
    )
    for length in (most, most + 1):
        context = np.zeros(length, np.int32)
        asked = request(key=Key("train", 3, 0, trajectory, turn), context=context)
        found = rejection(request_to_proto(asked), section, 64, SIDE_CHANNELS)
        assert (f"{length} " in (found or "")) == (length > most), found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"context": np.zeros(5, np.int32)}, "5 prompt tokens.*max_prompt_tokens is 4"),
        ({"context": np.zeros(0, np.int32)}, "0 prompt tokens"),
        ({"sampling": SamplingParams(max_new_tokens=9)}, "max_new_tokens 9.*is 8"),
        (
            {"sampling": SamplingParams(max_new_tokens=8, stop_strings=("a", ""))},
            "stop string '': it must have 1",
        ),
        ({"seeds": tuple(range(17))}, "17 samples, must be 1 to 16"),
        ({"seeds": ()}, "0 samples"),
        ({"resume": (generated(0, 4, "length"), generated(1, 0))}, None),
        ({"resume": (generated(0, 1),)}, "resume has samples other than"),
        ({"resume": (generated(0, 1), generated(0, 1))}, "resume has samples other than"),
        ({"resume": (generated(0, 1), generated(1, 5))}, "resume sample 1 has 5 tokens, 4 were"),
        ({"resume": (generated(0, 1), generated(1, 0, "stop"))}, "resume sample 1 is empty"),
        (
            {
                "resume": (
                    generated(0, 1, side={TRUNCATED_LOGPROBS: np.zeros(2, np.float32)}),
                    generated(1, 0),
                )
            },
            r"resume sample 0 has a side channel 'truncated_logprobs' of float32\[2\]: .*\[1\]",
        ),
        (
            {"resume": (generated(0, 1, logprobs=np.zeros(2, np.float32)), generated(1, 0))},
            "sample 0 has uneven",
        ),
        (
            {"resume": (generated(0, 4), generated(1, 0))},
            "sample 0 is unfinished with all of its 4 tokens",
        ),
        ({"context": np.array([7, 63], np.int32)}, None),
        ({"context": np.array([64, 7], np.int32)}, "prompt has token id 64, .*from 0 to 63"),
    ],
)
def test_workers_reject_what_no_engine_should_see(changes, message):
    rollouts = {"max_prompt_tokens": 4, "max_new_tokens": 8, "slots": 16, "group_size": 2}
    section = section_with(rollouts=rollouts, evaluation={"samples": 4, "k": [1]})
    found = rejection(request_to_proto(request(**changes)), section, 64, SIDE_CHANNELS)
    if message is None:
        assert found is None
    else:
        assert found is not None and found.startswith("evaluation group 3: ")
        assert re.search(message, found), found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": math.nan}, "temperature nan, must be 0 or from 0.001 on, and finite"),
        ({"temperature": -1.0}, "temperature -1.0, must"),
        ({"temperature": 2.0**-11}, "temperature 0.00048828125, must"),
        ({"top_p": 0.0}, "top_p 0.0, must be above 0 and at most 1"),
        ({"top_p": math.nan}, "top_p nan, must"),
        ({"top_k": -3}, "top_k -3, must be from 0 to 2147483647"),
        ({"max_new_tokens": 0}, "max_new_tokens 0, rlax.rollouts.max_new_tokens is 8"),
        ({"max_new_tokens": 2**31 - 1}, "max_new_tokens 2147483647, rlax"),
        ({"stop_ids": (-1,)}, "stop ids [-1], must be from 0 to 2147483647"),
        ({"stop_ids": (2**31 - 1,)}, None),
        ({"temperature": 0.0, "top_k": 2**31 - 1, "top_p": 2.0**-20}, None),
        ({"temperature": 0.001}, None),
    ],
)
def test_workers_reject_impossible_settings(changes, message):
    section = section_with(rollouts={"max_prompt_tokens": 4, "max_new_tokens": 8, "slots": 16})
    asked = request(sampling=SamplingParams(**{"max_new_tokens": 4, **changes}))
    found = rejection(request_to_proto(asked), section, 64)
    if message is None:
        assert found is None
    else:
        assert found is not None and found.startswith(f"evaluation group 3: {message}")


def test_what_is_to_be_resumed_is_whole_and_not_garbled():
    message = request_to_proto(request(resume=(generated(0, 2), generated(1, 2))))
    message.resume[1].begins_at = 1
    found = rejection(message, section_with(), 64, SIDE_CHANNELS)
    said = "it is garbled: tokens from 1 on, but those before were not sent"
    assert found == f"evaluation group 3: {said}"
