"""Groups that no message holds: they arrive whole, and hostile pieces end as the error they are."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from dispatching import answer, generated, join, make, request, requests_of
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
from rlax_plugin.rpc.transport.wire import key_from_proto

SIDE = {"experts": SideSpec("int16", (4,), "context+sampled")}
DECLARED = {"experts": pb.SideChannel(dtype="int16", trailing=[4], over="context+sampled")}
CONTEXT, NEW = 100, 600_000


def large(seed: int, count: int, finish: Any = None) -> Sampled:
    """16 bytes a token; its first tokens are the same for every count."""
    tokens = (seed % 7 + np.arange(count, dtype=np.int32)) % 50
    side = {"experts": np.arange((CONTEXT + count) * 4).astype(np.int16).reshape(-1, 4)}
    nats, versions = np.full(count, -1, np.float32), np.zeros(count, np.int32)
    return Sampled(seed, tokens, nats, versions, finish, ("w",), side)


def equal(found: Sequence[Sampled], expected: Sequence[Sampled]) -> bool:
    return [(s.seed, s.tokens.tobytes(), s.side["experts"].tobytes()) for s in found] == [
        (s.seed, s.tokens.tobytes(), s.side["experts"].tobytes()) for s in expected
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


@asynccontextmanager
async def worker(fleet: Fleet, name: str, engine: Engine) -> AsyncIterator[None]:
    limits = {"max_prompt_tokens": 128, "max_new_tokens": NEW, "slots": 4}
    server = grpc.aio.server(options=SERVER_OPTIONS)
    service = RolloutService(engine, section_with(rollouts=limits))
    rpc.add_RolloutServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            await join(fleet, name, answer, version=5, vocabulary=64, side=DECLARED)
            fleet.workers[name].link.stub = rpc.RolloutStub(channel)
            yield
    finally:
        await server.stop(grace=None)


def asked(number: int, *seeds: int) -> Request:
    context, sampling = np.arange(CONTEXT, dtype=np.int32) % 64, SamplingParams(max_new_tokens=NEW)
    return Request(Key("train", number), 1, context, seeds, sampling)


async def test_what_no_message_holds_arrives_in_both_directions():
    """A report of 17 MB, the request that resumes it, and an answer: gRPC takes 16 MiB."""
    seeds, reported = (3, 2**64 - 1), (500_000, 590_000)
    partial = [large(s, n) for s, n in zip(seeds, reported, strict=True)]
    whole = [large(s, NEW, "length") for s in seeds]

    fleet, dispatcher, lost = make(lambda one: one)
    dying, going_on = Engine(lambda one: partial), Engine(lambda one: whole)
    async with worker(fleet, "a", dying), worker(fleet, "b", going_on):
        fleet.workers["b"].draining = True
        ticket = dispatcher.submit(asked(0, *seeds))
        await eventually(lambda: lost)
        assert lost == ["a: INTERNAL: the engine has died"]
        fleet.workers["b"].draining = False
        dispatcher.wake()
        assert equal((await ticket).samples, whole)
        (resumed,) = going_on.requests
        assert equal(resumed.resume, partial)
    await dispatcher.close()


def cut(
    message: pb.Request, *lengths: int, finish: Any = "stop", most: int = 300
) -> list[pb.Reply]:
    """What ``generated`` makes of a request's seeds, in messages of at most 300 bytes."""
    samples = generated(message.seeds, *lengths, finish)
    return list(pieces.reply_messages(key_from_proto(message.key), samples, None, most))


def endless(message: pb.Request) -> Iterator[pb.Reply]:
    part = cut(message, 30, 1)[0]
    while True:
        yield part


def interleaved(message: pb.Request) -> list[pb.Reply]:
    other = pb.Request(key=pb.Key(group=1 - message.key.group), seeds=message.seeds)
    return [cut(message, 70, 40)[0], cut(other, 70, 40)[0]]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (endless, "was answered with more than 13,450 bytes"),
        (interleaved, "sent a garbled answer: a reply to group . in the midst of that to group"),
    ],
)
async def test_hostile_pieces_cost_a_worker_its_trust(script, reason):
    sent = 0

    def counted(message: pb.Request) -> Iterator[pb.Reply]:
        nonlocal sent
        for reply in script(message):
            sent += 1
            yield reply

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


async def test_the_end_of_a_call_in_the_midst_of_a_reply_is_a_call_that_was_not_answered():
    fleet, dispatcher, lost = make()
    await join(fleet, "bad", lambda message: cut(message, 70, 40)[:2])
    await join(fleet, "good", answer, slots=1)
    done = await dispatcher.submit(request(0, sampling=SamplingParams(1, stop_ids=(99,))))
    assert [w.name for w in done.workers] == ["good"] and done.request.attempt == 2
    (again,) = dispatcher.again
    assert again[1] == "the worker closed the call before it had answered"
    assert lost == [] and fleet.workers["bad"].assigned == 0
    await dispatcher.close()


async def test_pieces_of_a_request_that_expires_are_dropped():
    """The rest of a report is no answer; the answer, in pieces too, is late once; others follow."""

    fleet, dispatcher, lost = make(group_s=0.05)
    go = asyncio.Event()
    sampling = SamplingParams(max_new_tokens=500, stop_ids=(99,))

    class Slow:
        async def Generate(self, messages: Any) -> Any:
            expires, other = requests_of(messages)
            first, *rest = cut(expires, 30, 40, finish=None)
            yield first
            await go.wait()
            for reply in [*rest, *cut(expires, 70, 40), *cut(other, 70, 40)]:
                yield reply

    await join(fleet, "a", answer)
    fleet.workers["a"].link.stub = Slow()
    tickets = [dispatcher.submit(request(i, sampling=sampling)) for i in range(2)]
    await turns()
    await join(fleet, "b", answer)
    number = 0
    while not tickets[0].done():
        number += 1
        await beat(fleet, "a", (0, 1, 0), (1, 1, number))
    assert fleet.workers["a"].assigned == 4
    go.set()
    assert [w.name for w in (await tickets[1]).workers] == ["a"]
    assert dispatcher.late == 1 and lost == []
    await dispatcher.close()


async def test_a_request_that_cannot_be_sent_fails_as_what_it_is():
    fleet, dispatcher, lost = make()
    async with worker(fleet, "a", Engine(lambda one: [])):
        wrong = dispatcher.submit(asked(0, -1))  # no unsigned number
        with pytest.raises(ValueError):
            await wrong
        assert lost == [] and fleet.workers["a"].assigned == 0
    await dispatcher.close()
