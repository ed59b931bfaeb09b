"""Replies and requests that are cut arrive as they were; what fits into a message is not cut."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from wired import reply_from_proto

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, SideSpec
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport import pieces, wire
from rlax_plugin.rpc.transport.message_sizes import PIECE_BYTES, group_bytes
from rlax_plugin.rpc.transport.pieces import Arriving, Outgoing, read_requests

SIDE = {"experts": SideSpec("int16", (3,), "context+sampled"), "entropy": SideSpec("float32")}
CONTEXT = 5
LIMITS = {"most_requests": 9, "most_bytes": 1 << 20, "within_s": 60.0}


def sampled(
    seed: int, count: int, rng: np.random.Generator, side: Iterable[str] = (), finish=None
) -> Sampled:
    """Random numbers; its versions change now and then, or at every token."""
    share = rng.choice([0.0, 0.1, 1.0])
    versions = np.cumsum(rng.random(count) < share).astype(np.int32)
    numbers = {
        "experts": rng.integers(-9, 9, (CONTEXT + count, 3)).astype(np.int16),
        "entropy": rng.random(count, np.float32),
    }
    tokens = rng.integers(0, 2**31, count).astype(np.int32)
    logprobs = -rng.random(count, np.float32)
    chosen = {name: numbers[name] for name in side}
    return Sampled(seed, tokens, logprobs, versions, finish, ("w",), chosen)


def request(seeds: Sequence[int], resume: tuple[Sampled, ...] = (), context=CONTEXT) -> Request:
    sampling = SamplingParams(max_new_tokens=4096, stop_strings=("é",))
    tokens = np.arange(context, dtype=np.int32)
    return Request(Key("train", 7, 1), 3, tokens, tuple(seeds), sampling, 0, resume)


def equal(found: Sequence[Sampled], sent: Sequence[Sampled]) -> bool:
    def bits(one: Sampled) -> list[object]:
        arrays = [one.tokens, one.logprobs, one.versions]
        named = [(n, a.dtype, a.shape, a.tobytes()) for n, a in sorted(one.side.items())]
        return [one.seed, one.finish, *((a.dtype, a.tobytes()) for a in arrays), *named]

    return list(map(bits, found)) == list(map(bits, sent))


def arrived(
    messages: Sequence[pb.Reply], asked: Request, told: Sequence[Sampled] = ()
) -> tuple[Sampled, ...]:
    """What a receiver makes of a reply's messages."""
    arriving = Arriving()
    for data in [message.SerializeToString() for message in messages]:
        message = pb.Reply.FromString(data)
        arriving.note(asked.key, message)
        earlier = arriving.take(message, asked, "w", SIDE)
        assert (earlier is None) == message.more
    names = [("w",)] * len(asked.seeds)
    return reply_from_proto(
        message, asked, "w", told=told, workers=names, declared=SIDE, earlier=earlier
    )


def read(messages: Iterable[pb.GenerateRequest], **limits: float) -> list[list[pb.Request]]:
    async def stream() -> AsyncIterator[pb.GenerateRequest]:
        for message in messages:
            yield pb.GenerateRequest.FromString(message.SerializeToString())

    return asyncio.run(read_requests(stream(), **(LIMITS | limits)))


SHAPES = st.lists(
    st.tuples(
        st.integers(0, 150),
        st.sets(st.sampled_from(sorted(SIDE))),
        st.sampled_from([None, "stop", "length"]),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.property
@settings(max_examples=examples(50), deadline=None)
@given(SHAPES, st.integers(256, 900), st.randoms(use_true_random=False), st.data())
def test_what_is_cut_and_joined_is_what_was_sent(shapes, most_bytes, random, data):
    rng = np.random.default_rng(random.getrandbits(32))
    samples = tuple(sampled(i % 4, n, rng, side, end) for i, (n, side, end) in enumerate(shapes))
    known = [data.draw(st.integers(0, len(s.tokens))) for s in samples]
    told = [sampled(s.seed, 0, rng) for s in samples]
    for i, (s, count) in enumerate(zip(samples, known, strict=True)):
        cut = (s.tokens[:count], s.logprobs[:count], s.versions[:count])
        told[i] = Sampled(s.seed, *cut, None)
    asked = request([s.seed for s in samples], samples)

    replies = list(pieces.reply_messages(asked.key, samples, known, most_bytes))
    assert all(message.ByteSize() <= most_bytes for message in replies)
    assert [message.more for message in replies] == [True] * (len(replies) - 1) + [False]
    assert equal(arrived(replies, asked, told), samples)

    # The context alone may need several messages, too.
    fitting = request([1])
    others = [fitting, asked, request([s.seed for s in samples], samples, context=2000), fitting]
    room = most_bytes + 4096
    sent = list(pieces.request_messages(others, room))
    assert all(message.ByteSize() <= room for message in sent)
    found = [wire.request_from_proto(first, SIDE, rest) for first, *rest in read(sent)]
    for got, was in zip(found, others, strict=True):
        assert equal(got.resume, was.resume) and got.context.tolist() == was.context.tolist()
        for name in ("key", "attempt", "seeds", "sampling", "session", "min_version"):
            assert getattr(got, name) == getattr(was, name)


def test_a_cut_goes_through_tokens_and_through_the_bytes_of_a_side_channel():
    """Worked out by hand: 22 tokens at 8 bytes fit beside 64 twice and a run; 80 do not."""
    rng = np.random.default_rng(0)
    tokens, logprobs = np.arange(80, dtype=np.int32), -rng.random(80, np.float32)
    side = {"entropy": rng.random(80, np.float32)}
    one = Sampled(1, tokens, logprobs, np.zeros(80, np.int32), "length", side=side)
    found = list(pieces.reply_messages(Key("train", 7, 1), [one], None, 320))
    # (320 - 64 - 64 - 10) / 8 = 22 tokens.
    assert [len(m.samples[0].tokens) // 4 for m in found] == [22, 22, 22, 14, 0, 0]
    assert [m.samples[0].begins_at for m in found] == [0, 22, 44, 66, 80, 80]
    assert [list(m.samples[0].versions) for m in found][2:5] == [[0, 22], [0, 14], []]
    # 320 bytes of the channel: behind 14 tokens 31 fit, then 153 at a time.
    sizes = [len(m.samples[0].side["entropy"]) for m in found]
    assert sizes == [0, 0, 0, 31, 153, 136]
    assert [m.samples[0].finish for m in found] == [pb.LENGTH] * 6
    assert equal(arrived(found, request([1])), [one])


def test_an_ordinary_group_is_one_message():
    rng = np.random.default_rng(0)
    samples = tuple(sampled(i, 128, rng, ["entropy"], "stop") for i in range(64))
    asked = request(range(64), samples)
    (reply,) = pieces.reply_messages(asked.key, samples)
    (sent,) = pieces.request_messages([asked, request([1])])
    assert equal(arrived([reply], asked), samples)
    assert [len(parts) for parts in read([sent])] == [1, 1]
    # So it is for 16 samples of 32k tokens: 4 MiB of arrays.
    ids, nats, zeros = np.zeros((3, 32_768), np.int32)
    large = [Sampled(i, ids, nats.view(np.float32), zeros, "length") for i in range(16)]
    assert len(list(pieces.reply_messages(asked.key, large))) == 1


def test_many_requests_fill_messages_one_after_the_other():
    rng = np.random.default_rng(0)
    resume = (replace(sampled(1, 100_000, rng), versions=np.zeros(100_000, np.int32)),)
    sent = list(pieces.request_messages([request([1], resume)] * 5))
    # At 18 bytes a token two of them are counted as 3.6 MB, three as 5.4.
    assert [len(message.requests) for message in sent] == [2, 2, 1]
    assert not any(one.more for message in sent for one in message.requests)
    assert [len(parts) for parts in read(sent, most_bytes=16 << 20)] == [1] * 5
    assert all(message.ByteSize() <= PIECE_BYTES for message in sent)


def reply(*samples: pb.Sample, more: bool = True, **fields: object) -> pb.Reply:
    return pb.Reply(key=wire.key_to_proto(Key("train", 7, 1)), samples=samples, more=more, **fields)


def piece(seed: int, begins_at: int, count: int, **fields: object) -> pb.Sample:
    content = {"tokens": b"\0" * 4 * count, "logprobs": b"\0" * 4 * count}
    versions = [0, count] if count else []
    return pb.Sample(
        **({"seed": seed, "begins_at": begins_at, "versions": versions} | content | fields)
    )


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([reply(piece(1, 0, 2)), reply(piece(1, 3, 1))], "piece from token 3 on, expected 2"),
        ([reply(piece(1, 0, 2)), reply(piece(1, -1, 2))], "piece from token -1 on, expected 2"),
        ([reply(piece(1, 1, 2)), reply(piece(1, 3, 2))], "tokens from 1 on, but those before were"),
        ([reply(piece(1, 0, 2)), reply(piece(2, 2, 2))], "pieces of different samples"),
        (
            [reply(piece(1, 0, 2)), reply(piece(1, 2, 2, finish=pb.STOP))],
            "pieces of different samples",
        ),
        ([reply(piece(1, 0, 2)), reply()], "a part without samples"),
        ([reply(), reply(piece(1, 0, 2))], "a part without samples"),
        ([reply(piece(1, 0, 2)), reply(piece(1, 2, 2, logprobs=b"1"))], "multiple of element size"),
        ([reply(piece(2, 0, 2)), reply(piece(2, 2, 2))], "not requested"),
    ],
)
def test_pieces_that_do_not_join_are_garbled(messages, problem):
    messages[-1].more = False
    with pytest.raises(WorkerError, match=f"^w: group 7, sample 1, turn 0 .*{problem}"):
        arrived(messages, request([1]))


def test_no_more_is_kept_of_a_reply_than_can_be_generated():
    asked = request([1, 2])
    most = group_bytes(2, 4096, CONTEXT, SIDE)
    for large in (reply(piece(1, 0, 2000)), reply(piece(1, 0, 0)), reply()):
        arriving, count = Arriving(), 0
        with pytest.raises(WorkerError, match=f"answered with more than {most:,} bytes"):
            while True:
                count += 1
                arriving.note(asked.key, large)
                assert arriving.take(large, asked, "w", SIDE) is None
        # However small a message is, it counts as 1024 bytes.
        assert count == most // max(large.ByteSize(), 1024) + 1


def test_messages_of_two_replies_do_not_mix():
    arriving, other = Arriving(), Key("train", 8)
    arriving.note(Key("train", 7, 1), reply(piece(1, 0, 2)))
    with pytest.raises(
        ValueError, match="a reply to group 8 in the midst of that to group 7, samp"
    ):
        arriving.note(other, pb.Reply(key=wire.key_to_proto(other), given_up=True))
    with pytest.raises(ValueError, match=r"a part of a reply to group 7, .* that says that there"):
        arriving.note(Key("train", 7, 1), reply(more=False, given_up=True))
    with pytest.raises(ValueError, match="a part of a reply to group 8 that says that there"):
        Arriving().note(other, reply(more=True, given_up=True))


def part(more: bool, *samples: pb.Sample, group: int = 7, attempt: int = 1, **fields) -> pb.Request:
    key = pb.Key(group=group)
    return pb.Request(key=key, attempt=attempt, resume=samples, more=more, **fields)


def of(*requests: pb.Request) -> pb.GenerateRequest:
    return pb.GenerateRequest(requests=requests)


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([of(part(True)), of(part(False, group=8))], "a request in the midst of another one"),
        ([of(part(True), part(False, attempt=2))], "a request in the midst of another one"),
        ([of(part(False)), of(part(True))], "whose last request did not arrive whole"),
        ([of(part(True)), of(part(False, piece(1, 0, 1)))], "resumes other samples than it asks"),
        ([of(*[part(False)] * 10)], "a call of more than 9 requests"),
        ([of(part(True, seeds=[1]))] + [of(part(True))] * 2000, "more than 1,048,576 bytes"),
        ([of()] * 2000, "more than 1,048,576 bytes"),
    ],
)
def test_calls_that_no_controller_makes_are_rejected(messages, problem):
    with pytest.raises(ValueError, match=problem):
        read(messages)


async def test_a_caller_has_the_deadline_once_and_again_for_each_piece():
    async def drips(*parts: pb.GenerateRequest) -> AsyncIterator[pb.GenerateRequest]:
        for one in parts:
            yield one
        await asyncio.Event().wait()

    loop = asyncio.get_running_loop()
    large = of(part(True, context=bytes(PIECE_BYTES)))
    for parts, least_s in (((), 0.1), ((large, large), 0.3)):
        begun_s = loop.time()
        with pytest.raises(TimeoutError):
            limits = LIMITS | {"within_s": 0.1, "most_bytes": 1 << 30}
            await read_requests(drips(*parts), **limits)
        assert loop.time() - begun_s >= least_s


def test_what_cannot_be_sent_is_kept_as_the_error_that_it_is():
    good, bad = request([1]), request([-1])
    outgoing = Outgoing(one for one in (good, bad))
    with pytest.raises(ValueError):
        list(outgoing)
    assert isinstance(outgoing.error, ValueError)
    fine = Outgoing([good])
    assert len(list(fine)) == 1 and fine.error is None
