"""Groups that no message holds: they arrive whole, and hostile pieces end as the error they are."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from dispatching import answer, generated, join, make, request, run
from part_stubs import EngineStub
from sections import section_with
from test_progress import beat
from waiting import eventually, turns

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams, SideSpec
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport import pieces
from rlax_plugin.rpc.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS
from rlax_plugin.rpc.transport.message_sizes import MESSAGE_BYTES, PIECE_BYTES
from rlax_plugin.rpc.transport.wire import key_from_proto

SIDE = {
    "experts": SideSpec("int16", (4,), "context+sampled"),
    "entropy": SideSpec("float32"),
}
DECLARED = {
    "experts": pb.SideChannel(dtype="int16", trailing=[4], over="context+sampled"),
    "entropy": pb.SideChannel(dtype="float32", over="sampled"),
}
CONTEXT, NEW = 100, 600_000


def large(seed: int, count: int, finish: Any = None) -> Sampled:
    """Its first tokens are the same for every count; versions change every 1000 tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50, NEW).astype(np.int32)
    logprobs, entropy = -rng.random(NEW, np.float32), rng.random(NEW, np.float32)
    experts = rng.integers(0, 99, (CONTEXT + NEW, 4)).astype(np.int16)
    versions = (np.arange(NEW) // 100_000).astype(np.int32)
    side = {"experts": experts[: CONTEXT + count], "entropy": entropy[:count]}
    return Sampled(seed, tokens[:count], logprobs[:count], versions[:count], finish, ("w",), side)


def bits(samples: Sequence[Sampled]) -> list[Any]:
    return [
        (
            *(s.seed, s.finish, s.tokens.tobytes(), s.logprobs.tobytes(), s.versions.tobytes()),
            *((n, a.dtype, a.shape, a.tobytes()) for n, a in sorted(s.side.items())),
        )
        for s in samples
    ]


class Engine(EngineStub):
    """Generates by a script."""

    version = 5
    capabilities = Capabilities(slots=4, vocabulary=64, resumes=True, side=SIDE)

    def __init__(self, script: Callable[[Request], Sequence[Sampled]]):
        self._script = script
        self.requests: list[Request] = []

    async def generate(self, requests: Sequence[Request], on_reply: Any) -> None:
        self.requests += requests
        for one in requests:
            on_reply(one.key, samples := self._script(one))
            if any(s.finish is None for s in samples):
                raise WorkerError("the engine has died")


class Counted:
    """A stub that counts the messages of each call, in both directions."""

    def __init__(self, channel: grpc.aio.Channel):
        self._stub = rpc.RolloutStub(channel)
        self.sent: list[list[int]] = []
        self.received: list[int] = []

    async def Generate(self, messages: Any) -> Any:
        sent: list[int] = []
        self.sent.append(sent)

        def counted() -> Iterator[pb.GenerateRequest]:
            for message in messages:
                sent.append(message.ByteSize())
                yield message

        async for reply in self._stub.Generate(counted()):
            self.received.append(reply.ByteSize())
            yield reply


@asynccontextmanager
async def worker(fleet: Fleet, name: str, engine: Engine) -> AsyncIterator[Counted]:
    limits = {"max_prompt_tokens": 128, "max_new_tokens": NEW, "slots": 4}
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service = RolloutService(engine, section_with(rollouts=limits))
    rpc.add_RolloutServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            await join(fleet, name, answer, version=5, vocabulary=64, side=DECLARED)
            stub = fleet.workers[name].stub = Counted(channel)
            yield stub
    finally:
        await server.stop(grace=None)


def asked(number: int, *seeds: int) -> Request:
    context, sampling = np.arange(CONTEXT, dtype=np.int32) % 64, SamplingParams(max_new_tokens=NEW)
    return Request(Key("train", number), 1, context, seeds, sampling)


def test_what_no_message_holds_arrives_bit_for_bit_in_both_directions():
    """A report of 22 MB, the request that resumes it, and an answer that adds to it."""
    seeds, reported = (3, 2**64 - 1), (500_000, 590_000)
    partial = [large(s, n) for s, n in zip(seeds, reported, strict=True)]
    whole = [large(s, NEW, "length") for s in seeds]

    async def main():
        fleet, dispatcher, lost = make(lambda one: one)
        dying, going_on = Engine(lambda one: partial), Engine(lambda one: whole)
        async with worker(fleet, "a", dying) as first, worker(fleet, "b", going_on) as second:
            fleet.workers["b"].draining = True
            ticket = dispatcher.submit(asked(0, *seeds))
            await eventually(lambda: lost)
            assert lost == ["a: INTERNAL: the engine has died"]
            fleet.workers["b"].draining = False
            dispatcher.wake()
            done = await ticket
            assert bits(done.samples) == bits(whole)
            (resumed,) = going_on.requests
            assert bits(resumed.resume) == bits(partial)
            # A request that is cut begins with a message of its own, for its context.
            for sizes in (first.received, second.sent[0][1:]):
                assert sum(sizes) > MESSAGE_BYTES and len(sizes) == 6
                assert all(4 << 20 < size <= PIECE_BYTES for size in sizes[:-1])
            # What is resumed is known; of the side channels all is sent again.
            assert 12 << 20 < sum(second.received) < 16 << 20
            assert [len(sizes) for sizes in first.sent] == [1]
        await dispatcher.close()

    run(main)


def test_ordinary_groups_are_one_message_in_each_direction():
    async def main():
        fleet, dispatcher, lost = make()
        engine = Engine(lambda one: [large(s, NEW, "length") for s in one.seeds])
        async with worker(fleet, "a", engine) as stub:
            short = Engine.capabilities.slots
            requests = [asked(i, 7) for i in range(short)]
            tickets = [dispatcher.submit(one) for one in requests]
            await asyncio.gather(*tickets)
            # All that waits is one call, and one message; an answer of 12 MB takes three.
            assert [len(sizes) for sizes in stub.sent] == [1]
            assert len(stub.received) == 3 * short and lost == []
        await dispatcher.close()

    run(main)


def cut(
    message: pb.Request, *lengths: int, finish: Any = "stop", most: int = 300
) -> list[pb.Reply]:
    """What ``generated`` makes of a request's seeds, in messages of at most 300 bytes."""
    samples = generated(message.seeds, *lengths, finish)
    return list(pieces.reply_messages(key_from_proto(message.key), samples, None, most))


def test_reports_that_are_cut_add_up():
    def script(message: pb.Request) -> Any:
        first, second = cut(message, 30, 1, finish=None), cut(message, 70, 40)
        assert len(first) == 2 and len(second) == 6
        return [*first, *second]

    async def main():
        fleet, dispatcher, lost = make()
        await join(fleet, "a", script)
        sampling = SamplingParams(max_new_tokens=500, stop_ids=(99,))
        _, samples, _ = await dispatcher.submit(request(0, sampling=sampling))
        assert [s.tokens.tolist() for s in samples] == [[*range(69), 99], [*range(39), 99]]
        assert lost == []
        await dispatcher.close()

    run(main)


def endless(message: pb.Request) -> Iterator[pb.Reply]:
    part = cut(message, 30, 1)[0]
    while True:
        yield part


def gap(message: pb.Request) -> list[pb.Reply]:
    first, _, *rest = cut(message, 70, 40)
    return [first, *rest]


def twice(message: pb.Request) -> list[pb.Reply]:
    first, *rest = cut(message, 70, 40)
    return [first, first, *rest]


def interleaved(message: pb.Request) -> list[pb.Reply]:
    other = pb.Request(key=pb.Key(group=1 - message.key.group), seeds=message.seeds)
    return [cut(message, 70, 40)[0], cut(other, 70, 40)[0]]


def given_up(message: pb.Request) -> list[pb.Reply]:
    return [cut(message, 70, 40)[0], pb.Reply(key=message.key, given_up=True)]


def of_another(message: pb.Request) -> list[pb.Reply]:
    return cut(pb.Request(key=pb.Key(group=9), seeds=message.seeds), 70, 40)


def foreign(message: pb.Request) -> list[pb.Reply]:
    return cut(pb.Request(key=message.key, seeds=[5, 6]), 70, 40)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (endless, "was answered with more than 13,450 bytes"),
        (gap, "is garbled: a piece from token"),
        (twice, "was answered with samples that were not requested|is garbled: a piece from tok"),
        (interleaved, "sent a garbled answer: a reply to group . in the midst of that to group"),
        (given_up, "sent a garbled answer: a part of a reply to group . that says that there is"),
        (of_another, "answered group 9, which it had not been sent"),
        (foreign, "was answered with samples that were not requested"),
    ],
)
def test_hostile_pieces_cost_a_worker_its_trust(script, reason):
    sent = 0

    def counted(message: pb.Request) -> Iterator[pb.Reply]:
        nonlocal sent
        for reply in script(message):
            sent += 1
            yield reply

    async def main():
        fleet, dispatcher, lost = make()
        await join(fleet, "bad", counted)
        sampling = SamplingParams(max_new_tokens=250, stop_ids=(99,))
        tickets = [dispatcher.submit(request(i, sampling=sampling)) for i in range(2)]
        await eventually(lambda: lost)
        assert len(lost) == 1
        assert re.match(f"bad: bad(: group .)? ({reason})", lost[0]), lost
        assert fleet.workers.get("bad") is None
        good = await join(fleet, "good", answer)
        for ticket in tickets:
            assert [w.name for w in (await ticket).workers] == ["good"]
        assert not any(one.resume for one in good.requests)
        # 13 kB can be generated for two samples of 250 tokens, and a message counts as 1 KiB.
        assert sent <= 15
        await dispatcher.close()

    run(main)


def test_the_end_of_a_call_in_the_midst_of_a_reply_is_a_call_that_was_not_answered():
    async def main():
        fleet, dispatcher, lost = make()
        await join(fleet, "bad", lambda message: cut(message, 70, 40)[:2])
        await join(fleet, "good", answer, slots=1)
        done = await dispatcher.submit(request(0, sampling=SamplingParams(1, stop_ids=(99,))))
        assert [w.name for w in done.workers] == ["good"] and done.request.attempt == 2
        (again,) = dispatcher.again
        assert again[1] == "the worker closed the call before it had answered"
        assert lost == [] and fleet.workers["bad"].assigned == 0
        await dispatcher.close()

    run(main)


def test_pieces_of_a_request_that_expires_are_dropped():
    """The rest of a report is no answer; the answer, in pieces too, is late once."""

    async def main():
        fleet, dispatcher, lost = make(group_s=0.05)
        go = asyncio.Event()
        sampling = SamplingParams(max_new_tokens=500, stop_ids=(99,))

        class Slow:
            async def Generate(self, messages: Any) -> Any:
                (message,) = [m for m in messages for m in m.requests][:1]
                first, *rest = cut(message, 30, 40, finish=None)
                yield first
                await go.wait()
                for reply in [*rest, *cut(message, 70, 40)]:
                    yield reply
                await asyncio.Event().wait()

        await join(fleet, "a", answer)
        fleet.workers["a"].stub = Slow()
        tickets = [dispatcher.submit(request(i, sampling=sampling)) for i in range(2)]
        await turns()
        (call,) = dispatcher._calls.values()
        assert len(call.arriving._messages) == 1
        await join(fleet, "b", answer)
        number = 0
        while not tickets[0].done():
            number += 1
            await beat(fleet, "a", (0, 1, 0), (1, 1, number))
        assert call.arriving._messages == [] and fleet.workers["a"].assigned == 4
        go.set()
        await eventually(lambda: dispatcher.late)
        assert dispatcher.late == 1 and lost == [] and fleet.workers["a"].assigned == 2
        assert not tickets[1].done()
        await dispatcher.close()

    run(main)


def test_a_request_that_cannot_be_sent_fails_as_what_it_is():
    async def main():
        fleet, dispatcher, lost = make()
        async with worker(fleet, "a", Engine(lambda one: [])) as _:
            wrong = dispatcher.submit(asked(0, -1))  # no unsigned number
            with pytest.raises(ValueError):
                await wrong
            assert lost == [] and fleet.workers["a"].assigned == 0
        await dispatcher.close()

    run(main)
