"""What a worker's service sends: of each sample what is new, and all of one that was begun anew."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from part_stubs import EngineStub
from sections import section_with
from wired import reply_from_proto

from rlax_plugin.base.types import Key, Request, Sampled, SideSpec
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.replies import check_reply
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS
from rlax_plugin.rpc.transport.pieces import request_messages
from rlax_plugin.rpc.transport.wire import key_from_proto
from rlax_plugin.testing import make_request, make_sampled

SIDE = {"entropy": SideSpec("float32")}
OnReply = Callable[[Key, Sequence[Sampled]], None]


class Engine(EngineStub):
    """Tells what a test gives it, one report after the other."""

    version = 3
    capabilities = Capabilities(slots=4, vocabulary=64, resumes=True, side=SIDE)

    def __init__(self, *reports: Any):
        self.reports, self.requests = reports, []

    async def generate(self, requests: Sequence[Request], on_reply: OnReply) -> None:
        self.requests += requests
        for key, samples in self.reports:
            on_reply(key, samples)
            await asyncio.sleep(0)


@asynccontextmanager
async def served(engine: Engine, **changes: Any) -> AsyncIterator[tuple[Any, RolloutService]]:
    """A stub of an engine's service, and the service."""
    rollouts = {"max_prompt_tokens": 4, "max_new_tokens": 8, "slots": 4}
    service = RolloutService(engine, section_with(**({"rollouts": rollouts} | changes)))
    server = grpc.aio.server(options=SERVER_OPTIONS)
    rpc.add_RolloutServicer_to_server(service, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            yield rpc.RolloutStub(channel), service
    finally:
        await server.stop(grace=None)


def answered(engine: Engine, *requests: Request) -> list[pb.Reply]:
    async def run() -> list[pb.Reply]:
        async with served(engine) as (stub, _):
            asked = request_messages(requests)
            return [reply async for reply in stub.Generate(asked, timeout=60)]

    return asyncio.run(run())


def sample(seed: int, *tokens: int, finish: str | None = None, version: int = 3) -> Sampled:
    nats = -np.array(tokens, np.float32)
    return make_sampled(seed=seed, tokens=tokens, logprobs=nats, version=version, finish=finish)


def with_side(one: Sampled) -> Sampled:
    return replace(one, side={"entropy": 2 * one.logprobs})


def sent(reply: pb.Reply) -> list[tuple[int, list[int]]]:
    """Of each sample where it begins, and its tokens."""
    return [(s.begins_at, np.frombuffer(s.tokens, "<i4").tolist()) for s in reply.samples]


def received(replies: Sequence[pb.Reply], request: Request) -> list[tuple[Sampled, ...]]:
    """What the caller makes of a request's replies."""
    told, names = request.resume, [("w",)] * len(request.seeds)
    found = []
    for reply in replies:
        told = reply_from_proto(reply, request, "w", told=told, workers=names, declared=SIDE)
        check_reply(told, request, 9, worker="w", side=SIDE)
        found.append(told)
    return found


def test_each_report_says_only_what_is_new_of_its_request():
    one, other = make_request(0), make_request(1)
    seeds = *one.seeds, *other.seeds
    reports = [
        (one.key, [sample(seeds[0], 5, 6), sample(seeds[1])]),
        (other.key, [sample(seeds[2], 7), sample(seeds[3], 8)]),
        (one.key, [sample(seeds[0], 5, 6), sample(seeds[1], 9)]),
        (
            one.key,
            [sample(seeds[0], 5, 6, 1, finish="stop"), sample(seeds[1], 9, 1, finish="stop")],
        ),
        (other.key, [sample(seeds[i], 7 + i - 2, 1, finish="stop") for i in (2, 3)]),
    ]
    replies = answered(Engine(*reports), one, other)
    assert [key_from_proto(reply.key).group for reply in replies] == [0, 1, 0, 0, 1]
    assert list(map(sent, replies)) == [
        [(0, [5, 6]), (0, [])],
        [(0, [7]), (0, [8])],
        [(2, []), (0, [9])],
        [(2, [1]), (1, [1])],
        [(1, [1]), (1, [1])],
    ]
    assert [list(s.versions) for s in replies[3].samples] == [[3, 1], [3, 1]]
    found = received([replies[i] for i in (0, 2, 3)], one)
    assert [s.tokens.tolist() for s in found[-1]] == [[5, 6, 1], [9, 1]]
    assert [s.logprobs.tolist() for s in found[-1]] == [[-5, -6, -1], [-9, -1]]


@pytest.mark.parametrize(
    "again",
    [
        sample(1, 5, 7, 8),  # another second token
        sample(1, 5, 6, 8, version=4),  # the same tokens, with newer weights
        replace(sample(1, 5, 6, 8), logprobs=np.array([-5, -6.5, -8], np.float32)),
        sample(1, 5),  # shorter
        sample(1),
    ],
)
def test_a_sample_that_was_begun_anew_is_sent_whole(again):
    request = make_request(0, seeds=(1, 2))
    reports = [
        (request.key, [sample(1, 5, 6), sample(2, 5, 6)]),
        (request.key, [again, sample(2, 5, 6, 7)]),
    ]
    replies = answered(Engine(*reports), request)
    assert sent(replies[1]) == [(0, again.tokens.tolist()), (2, [7])]
    (found, _) = received(replies, request)[-1]
    for name in ("tokens", "logprobs", "versions"):
        assert getattr(found, name).tolist() == getattr(again, name).tolist()


def test_what_was_resumed_is_known_to_the_caller():
    resume = with_side(sample(1, 5, 6)), with_side(sample(2, 7, 1, finish="stop"))
    request = make_request(0, seeds=(1, 2), resume=resume)
    last = with_side(sample(1, 5, 6, 8, 1, finish="stop"))
    engine = Engine((request.key, [last, resume[1]]))
    replies = answered(engine, request)
    (asked,) = engine.requests
    assert [s.tokens.tolist() for s in asked.resume] == [[5, 6], [7, 1]]
    assert [s.side["entropy"].tolist() for s in asked.resume] == [[-10, -12], [-14, -2]]
    assert sent(replies[0]) == [(2, [8, 1]), (2, [])]
    first, second = received(replies, request)[0]
    assert first.tokens.tolist() == [5, 6, 8, 1] and second.tokens.tolist() == [7, 1]
    assert first.side["entropy"].tolist() == [-10, -12, -16, -2]  # it is sent whole


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (make_request(4, seeds=()), "group 4: 0 samples"),
        (make_request(4, key=Key("evaluate", 4), seeds=()), "evaluation group 4: 0 samples"),
        (
            make_request(4, key=Key("train", 4, 1, 0, 2), context=np.array([99], np.int32)),
            "group 4, sample 1, turn 2: the prompt has token id 99",
        ),
        (
            make_request(4, seeds=(1,), resume=(replace(sample(1, 5), side={"x": np.zeros(1)}),)),
            "group 4: it is garbled: side channel 'x', which was not declared",
        ),
    ],
)
def test_what_is_rejected_is_named_as_the_controller_names_it(request_, problem):
    engine = Engine()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        answered(engine, request_)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith(problem) and engine.requests == []
