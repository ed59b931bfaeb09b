"""Replies say only what is new; what they say arrives, and what contradicts itself does not."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from counted_work import counted
from wired import reply_from_proto

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Sampled, SideSpec
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import reply_to_proto
from rlax_plugin.testing import make_request, make_sampled

SEEDS = (2**64 - 1, 5)
REQUEST = make_request(4, seeds=SEEDS)
DECLARED = {"logits": SideSpec("float32", (2,)), "experts": SideSpec("uint8", (), "sampled")}


def sample(index: int, *versions: int, finish: str | None = "length", **changes) -> Sampled:
    """As many tokens as versions: 10, 11, ..., with log-probs -0.25, -0.5, ..."""
    count = len(versions)
    return make_sampled(
        seed=SEEDS[index],
        tokens=10 + np.arange(count),
        logprobs=(-0.25 * np.arange(1, count + 1)).astype(np.float32),
        versions=np.array(versions, np.int32),
        finish=finish,
        workers=(),
        **changes,
    )


def over_the_wire(message: pb.Reply, told: Sequence[Sampled] = ()) -> tuple[Sampled, ...]:
    return reply_from_proto(
        pb.Reply.FromString(message.SerializeToString()),
        REQUEST,
        "w",
        told=told,
        workers=[("v", "w"), ("w",)],
        declared=DECLARED,
    )


def same(one: Sampled, other: Sampled) -> bool:
    arrays = ("tokens", "logprobs", "versions")
    return (one.seed, one.finish) == (other.seed, other.finish) and all(
        getattr(one, name).dtype == getattr(other, name).dtype
        and getattr(one, name).tolist() == getattr(other, name).tolist()
        for name in arrays
    )


def test_replies_survive_the_wire():
    sent = sample(0, 3, 4), sample(1, 7, 7, 7, finish="stop")
    message = reply_to_proto(Key("evaluate", 2), sent)
    assert message.key == pb.Key(purpose=pb.EVALUATE, group=2)
    first, second = over_the_wire(message)
    assert same(first, sent[0]) and same(second, sent[1])
    assert (first.workers, second.workers) == (("v", "w"), ("w",))
    assert first.tokens.tolist() == [10, 11] and first.logprobs.tolist() == [-0.25, -0.5]
    assert dict(first.side) == {}


@pytest.mark.parametrize(
    ("versions", "runs"),
    [
        ((), []),
        ((3,), [3, 1]),
        ((0, 0, 0), [0, 3]),
        ((2, 2, 3, 5, 5, 5), [2, 2, 3, 1, 5, 3]),
        ((1, 2, 3), [1, 1, 2, 1, 3, 1]),
        # No engine may generate it, and the controller has to see that one did.
        ((4, 3, 4), [4, 1, 3, 1, 4, 1]),
        ((-1, 3), [-1, 1, 3, 1]),
    ],
)
def test_versions_travel_as_runs(versions, runs):
    message = reply_to_proto(REQUEST.key, [sample(0, *versions, finish=None), sample(1, 1)])
    assert list(message.samples[0].versions) == runs
    assert over_the_wire(message)[0].versions.tolist() == list(versions)


def test_of_what_is_known_only_the_rest_is_sent():
    before = sample(0, 3, 3, finish=None), sample(1, 3, finish=None)
    after = sample(0, 3, 3, 3, 4, 5), sample(1, 3, 6, finish=None)
    message = reply_to_proto(REQUEST.key, after, [2, 1])
    first, second = message.samples
    assert (first.begins_at, second.begins_at) == (2, 1)
    assert np.frombuffer(first.tokens, "<i4").tolist() == [12, 13, 14]
    assert np.frombuffer(first.logprobs, "<f4").tolist() == [-0.75, -1.0, -1.25]
    assert list(first.versions) == [3, 1, 4, 1, 5, 1] and list(second.versions) == [6, 1]
    for got, was in zip(over_the_wire(message, before), after, strict=True):
        assert same(got, was)


def test_a_reply_may_repeat_the_end_of_what_is_known_or_add_nothing():
    before = sample(0, 3, 3, 3, finish=None), sample(1, 3, finish=None)
    other = replace(sample(0, 3, 4, 4), tokens=np.array([10, 77, 78], np.int32))
    # Behind the first of three known tokens the others are replaced; the second sample only ends.
    found = over_the_wire(reply_to_proto(REQUEST.key, [other, sample(1, 3)], [1, 1]), before)
    assert same(found[0], other) and same(found[1], sample(1, 3))


def test_declared_side_channels_arrive_in_their_shape():
    logits, experts = np.arange(4, dtype=np.float32).reshape(2, 2), np.array([0, 255], np.uint8)
    sent = sample(0, 3, 3, side={"logits": logits, "experts": experts}), sample(1, 3)
    first, second = over_the_wire(reply_to_proto(REQUEST.key, sent))
    assert first.side["logits"].tolist() == [[0, 1], [2, 3]]
    assert first.side["logits"].dtype == np.float32
    assert first.side["experts"].tolist() == [0, 255] and first.side["experts"].dtype == np.uint8
    assert not second.side
    # They are sent whole, whatever is known of the tokens.
    partly = reply_to_proto(REQUEST.key, sent, [1, 0])
    assert over_the_wire(partly, sent)[0].side["logits"].tolist() == [[0, 1], [2, 3]]


def broken(index: int = 1, **changes) -> pb.Reply:
    """A sound reply of two tokens each, but for one field of one sample."""
    message = reply_to_proto(REQUEST.key, [sample(0, 3, 4), sample(1, 3, 4)])
    for name, value in changes.items():
        if name == "versions":
            del message.samples[index].versions[:]
            message.samples[index].versions.extend(value)
        elif name == "side":
            message.samples[index].side.update(value)
        else:
            setattr(message.samples[index], name, value)
    return message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokens": b"12345"}, "buffer size must be a multiple"),
        # Runs of two tokens.
        ({"versions": []}, "versions of 0 tokens for 2"),
        ({"versions": [3, 2, 4, 1]}, "versions of 3 tokens for 2"),
        ({"versions": [3, 3, 4, -1]}, "versions of 2 tokens for 2"),
        ({"versions": [3, 0, 4, 2]}, "versions of 2 tokens for 2"),
        ({"versions": [3, 2**31 - 1, 4, 2**31 - 1]}, "versions of 4294967294 tokens for 2"),
        ({"versions": [3, 1, 4]}, "cannot reshape"),
        ({"versions": [3, 1] * 100_000}, "100000 runs of versions for 2 tokens"),
        ({"finish": 3}, "finish 3 does not exist"),
        ({"finish": -1}, "finish -1 does not exist"),
        # One token of sample 1 is known.
        ({"begins_at": 2}, "tokens from 2 on, but those before were not sent"),
        ({"begins_at": -1}, "tokens from -1 on"),
        ({"side": {"x": b""}}, "side channel 'x', which was not declared"),
        ({"side": {"experts": b"1", "logits": b"123456"}}, "buffer size must be a multiple"),
        ({"side": {"logits": b"1234" * 3}}, r"cannot reshape array of size 3 into shape \(2\)"),
    ],
)
def test_what_is_garbled_is_rejected_by_the_name_of_worker_and_request(changes, problem):
    told = sample(0, 3, 4, finish=None), sample(1, 3, finish=None)
    with pytest.raises(WorkerError, match=f"w: group 4 is garbled: {problem}"):
        over_the_wire(broken(**changes), told)


def test_the_first_reply_begins_at_the_first_token():
    with pytest.raises(WorkerError, match="tokens from 1 on, but those before were not sent"):
        over_the_wire(broken(begins_at=1))


@pytest.mark.parametrize(
    "samples",
    [
        [sample(0, 3)],
        [sample(1, 3), sample(0, 3)],
        [sample(0, 3), sample(1, 3), sample(1, 3)],
        [sample(0, 3), replace(sample(1, 3), seed=6)],
    ],
)
def test_samples_that_were_not_requested_are_rejected(samples):
    with pytest.raises(WorkerError, match="w: group 4 was answered with samples that were not req"):
        over_the_wire(reply_to_proto(REQUEST.key, samples))


def test_a_message_of_ever_so_many_empty_samples_costs_no_look_at_each():
    message = pb.Reply.FromString(b"\x12\x00" * 200_000)
    assert len(message.samples) == 200_000
    with (
        counted() as work,
        pytest.raises(WorkerError, match="was answered with samples that were not requested"),
    ):
        reply_from_proto(message, REQUEST, "w", told=(), workers=[("w",), ("w",)])
    assert work.calls + work.jumps < 10_000  # most of them for the message of the error
