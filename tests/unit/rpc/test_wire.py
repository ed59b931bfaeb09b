"""What crosses the wire arrives as it was sent, and nonsense does not pass."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sections import section_with

from rlax_plugin.errors import WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import (
    reply_from_proto,
    reply_to_proto,
    request_from_proto,
    request_to_proto,
)
from rlax_plugin.types import GroupRequest, Rollout, SamplingParams
from rlax_plugin.worker.service import rejection

SEEDS = (2**64 - 1, 5)


def generated(index: int, tokens: int, reason: str = "cancelled", **changes) -> Rollout:
    ids, logprob = 10 + np.arange(tokens, dtype=np.int32), np.full(tokens, -0.5, np.float32)
    versions = np.full(tokens, 6, np.int32)
    fields = {"seed": SEEDS[index], "tokens": ids, "logprob_full": logprob}
    fields |= {"logprob_sampled": logprob * 2, "versions": versions, "finish_reason": reason}
    return Rollout(-3, index, **(fields | changes))


def request(**changes) -> GroupRequest:
    sampling = SamplingParams(0.5, 3, 0.75, 4, (1, 9))
    fields = {"group_id": -3, "attempt": 2, "prompt_tokens": np.array([7, 8], np.int32)}
    fields |= {"seeds": SEEDS, "sampling": sampling, "min_version": 6}
    return GroupRequest(**(fields | changes))


def reply(**changes) -> pb.GroupReply:
    logprob = np.array([-0.5, -2.0], np.float32)
    rollouts = [
        Rollout(
            4,
            i,
            seed,
            np.array([i, 1], np.int32),
            logprob,
            logprob * 2,
            np.array([3, 4], np.int32),
            "length",
        )
        for i, seed in enumerate(SEEDS)
    ]
    message = reply_to_proto(4, rollouts)
    for name, value in changes.items():
        setattr(message.samples[1], name, value)
    return message


def test_requests_survive_the_wire():
    sent = request()
    found = request_from_proto(pb.GroupSpec.FromString(request_to_proto(sent).SerializeToString()))
    assert found.prompt_tokens.tolist() == [7, 8] and found.prompt_tokens.dtype == np.int32
    for name in ("group_id", "attempt", "seeds", "sampling", "min_version"):
        assert getattr(found, name) == getattr(sent, name)
    assert found.resume == ()


def test_what_is_to_be_resumed_survives_the_wire():
    sent = request(resume=(generated(0, 3), generated(1, 4, "length")))
    found = request_from_proto(pb.GroupSpec.FromString(request_to_proto(sent).SerializeToString()))
    assert [r.finish_reason for r in found.resume] == ["cancelled", "length"]
    assert [(r.group_id, r.index, r.seed) for r in found.resume] == [
        (-3, 0, SEEDS[0]),
        (-3, 1, SEEDS[1]),
    ]
    for got, was in zip(found.resume, sent.resume, strict=True):
        for name in ("tokens", "logprob_full", "logprob_sampled", "versions"):
            assert getattr(got, name).tobytes() == getattr(was, name).tobytes()


def test_replies_survive_the_wire():
    first, second = reply_from_proto(reply(), "w", SEEDS)
    assert (first.seed, second.seed, second.index, second.worker) == (2**64 - 1, 5, 1, "w")
    assert second.tokens.tolist() == [1, 1] and second.versions.tolist() == [3, 4]
    assert second.logprob_full.tolist() == [-0.5, -2.0]
    assert second.logprob_sampled.tolist() == [-1.0, -4.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 6}, "samples that were not requested"),
        ({"tokens": b"12345"}, "garbled"),
    ],
)
def test_answers_that_do_not_fit_are_rejected(changes, message):
    with pytest.raises(WorkerError, match=message):
        reply_from_proto(reply(**changes), "w", SEEDS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"prompt_tokens": np.zeros(5, np.int32)}, "5 prompt tokens.*max_prompt_tokens is 4"),
        ({"prompt_tokens": np.zeros(0, np.int32)}, "0 prompt tokens"),
        ({"sampling": SamplingParams(max_new_tokens=9)}, "max_new_tokens 9.*is 8"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature nan"),
        ({"sampling": SamplingParams(top_p=0.0)}, "top_p 0"),
        ({"seeds": tuple(range(17))}, "17 samples, must be 1 to 16"),
        ({"seeds": ()}, "0 samples"),
        ({"resume": (generated(0, 4, "length"), generated(1, 0))}, None),
        ({"resume": (generated(0, 1),)}, "resume has samples other than"),
        ({"resume": (generated(0, 1), generated(0, 1))}, "resume has samples other than"),
        ({"resume": (generated(0, 1), generated(1, 5))}, "resume sample 1 has 5 tokens, 4 were"),
        ({"resume": (generated(0, 1), generated(1, 0, "stop"))}, "resume sample 1 is empty"),
        (
            {"resume": (generated(0, 1, "tired"), generated(1, 0))},
            "resume sample 0 ended by 'tired'",
        ),
        (
            {"resume": (generated(0, 1, versions=np.zeros(2)), generated(1, 0))},
            "sample 0 has uneven",
        ),
        (
            {"resume": (generated(0, 4), generated(1, 0))},
            "sample 0 is unfinished with all of its 4 tokens",
        ),
        ({"prompt_tokens": np.array([7, 63], np.int32)}, None),
        ({"prompt_tokens": np.array([64, 7], np.int32)}, "prompt has token id 64, .*from 0 to 63"),
        ({"prompt_tokens": np.array([7, -1], np.int32)}, "prompt has token id -1"),
    ],
)
def test_workers_reject_what_no_engine_should_see(changes, message):
    rollouts = {"max_prompt_tokens": 4, "max_new_tokens": 8, "slots": 16, "group_size": 2}
    section = section_with(rollouts=rollouts, evaluation={"samples": 4, "k": [1]})
    found = rejection(request_to_proto(request(**changes)), section, 64)
    if message is None:
        assert found is None
    else:
        assert found is not None and found.startswith("group -3: ")
        assert re.search(message, found), found
