"""Calls of callers that mean no good end; the worker keeps no more than a call may ask for."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from test_rollout_service import SIDE, Engine, served

from rlax_plugin.base.types import Request
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.message_sizes import group_bytes
from rlax_plugin.rpc.transport.pieces import request_messages
from rlax_plugin.rpc.transport.wire import request_to_proto
from rlax_plugin.testing import make_request, make_sampled

SECTION: dict[str, Any] = {
    "rollouts": {"max_prompt_tokens": 4, "max_new_tokens": 1000, "slots": 4, "group_size": 2},
    "evaluation": {"samples": 6, "k": [1]},
}
MOST_REQUESTS = 2 * 4 + 6  # twice the slots, and one group of an evaluation
MOST_BYTES = MOST_REQUESTS * group_bytes(1, 1000, 4, SIDE)


def ended(messages: Any, rpc_s: float = 60.0) -> tuple[grpc.StatusCode, str]:
    """How a call ends; no engine sees it."""

    async def main() -> tuple[grpc.StatusCode, str]:
        engine = Engine()
        async with served(engine, **SECTION, deadlines={"rpc_s": rpc_s}) as (stub, _):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                [reply async for reply in stub.Generate(messages, timeout=60)]
        assert engine.requests == []
        return caught.value.code(), caught.value.details()

    return asyncio.run(main())


def part(group: int = 1, more: bool = True, **fields: Any) -> pb.GenerateRequest:
    one = request_to_proto(make_request(group, seeds=(1,)))
    one.more = more
    for name, value in fields.items():
        setattr(one, name, value)
    return pb.GenerateRequest(requests=[one])


@pytest.mark.parametrize(
    ("messages", "details"),
    [
        ([part(), part(2, False)], "a request in the midst of another one"),
        # However small a message is, it counts as 1024 bytes.
        ([part()] * (MOST_BYTES // 1024 + 1), f"a call of more than {MOST_BYTES:,} bytes"),
        ([part(more=False)] * 15, "a call of more than 14 requests"),
        ([part(context=bytes(8)), part(more=False, context=bytes(12))], "5 prompt tokens"),
    ],
)
def test_requests_that_do_not_join_or_are_too_long_are_rejected(messages, details):
    code, found = ended(messages)
    assert code == grpc.StatusCode.INVALID_ARGUMENT and details in found


def test_a_caller_that_does_not_end_its_requests_does_not_hold_the_worker():
    async def silent() -> AsyncIterator[pb.GenerateRequest]:
        yield part(more=False)
        await asyncio.Event().wait()

    code, details = ended(silent(), rpc_s=0.2)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert details == "the call's requests did not arrive whole, rlax.deadlines.rpc_s is 0.2"


async def test_a_worker_that_begins_to_drain_while_it_reads_takes_no_request():
    engine = Engine()
    async with served(engine, **SECTION) as (stub, service):

        async def drains() -> AsyncIterator[pb.GenerateRequest]:
            yield part(more=False)
            service.draining = True

        with pytest.raises(grpc.aio.AioRpcError, match="is draining") as caught:
            [reply async for reply in stub.Generate(drains(), timeout=60)]
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert engine.requests == [] and not service.generating


async def test_the_largest_call_that_a_controller_makes_is_taken():
    """Twice the slots, with all that can be resumed of them, in messages of 2 KiB; and a group."""
    count = 999
    nats = -np.ones(count, np.float32)
    requests = []
    for i in range(MOST_REQUESTS):
        made = make_sampled(seed=1, tokens=[5] * count, logprobs=nats, version=3, finish=None)
        requests.append(make_request(i, seeds=(1,), resume=(made,)))
        requests[-1] = _asking(requests[-1], 1000)

    engine = Engine()
    async with served(engine, **SECTION) as (stub, _):
        messages = list(request_messages(requests, 2048))
        assert len(messages) > 5 * MOST_REQUESTS
        assert [r async for r in stub.Generate(iter(messages), timeout=60)] == []
    assert [one.key for one in engine.requests] == [one.key for one in requests]
    assert all(one.resume[0].tokens.tolist() == [5] * count for one in engine.requests)


def _asking(request: Request, tokens: int) -> Request:
    sampling = replace(request.sampling, max_new_tokens=tokens, stop_ids=())
    return replace(request, sampling=sampling)
