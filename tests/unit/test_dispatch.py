"""Who is asked what, and what becomes of groups whose worker fails; the workers are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from rlax_plugin.config import Deadlines
from rlax_plugin.controller.dispatch import MAX_FAILURES, Dispatcher
from rlax_plugin.controller.fleet import Fleet
from rlax_plugin.errors import DeadlineError, WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import GroupRequest, Rollout, SamplingParams
from rlax_plugin.wire import reply_to_proto

Script = Callable[[pb.GroupSpec], pb.GroupReply]


def answer(spec: pb.GroupSpec) -> pb.GroupReply:
    one = np.ones(1, np.float32)
    ids = np.ones(1, np.int32)
    rollouts = [Rollout(spec.group_id, i, s, ids, one, one, ids, "stop")
                for i, s in enumerate(spec.seeds)]  # fmt: skip
    return reply_to_proto(spec.group_id, rollouts)


def failing(code: grpc.StatusCode) -> Script:
    def fail(spec: pb.GroupSpec) -> pb.GroupReply:
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, empty, empty, details=f"told {spec.group_id}")

    return fail


class Stub:
    def __init__(self, script: Script):
        self.script, self.calls = script, []

    async def Generate(self, request: pb.GenerateRequest, timeout: float) -> Any:
        self.calls.append([spec.group_id for spec in request.groups])
        for spec in request.groups:
            await asyncio.sleep(0)
            yield self.script(spec)


def make(**deadlines: float) -> tuple[Fleet, Dispatcher, list[str]]:
    lost: list[str] = []
    settings = Deadlines(**({"heartbeat_s": 0.02, "startup_s": 5.0} | deadlines))
    fleet = Fleet(
        deadlines=settings,
        config_hash="abc",
        parameter_server="127.0.0.1:1",
        latest_version=lambda: 0,
        on_ready=lambda worker: dispatcher.wake(),
        on_lost=lambda worker, reason: lost.append(f"{worker.name}: {reason}"),
    )
    dispatcher = Dispatcher(fleet, settings, refresh=lambda request: request.min_version + 1)
    return fleet, dispatcher, lost


async def join(fleet: Fleet, name: str, script: Script, slots: int = 4) -> Stub:
    request = pb.RegisterRequest(
        worker=name, address="127.0.0.1:1", slots=slots, config_hash="abc", version=-1
    )
    assert (await fleet.Register(request, None)).accepted
    stub = fleet.workers[name].stub = Stub(script)
    await fleet.Heartbeat(pb.HeartbeatRequest(worker=name, version=0), None)
    return stub


def request(group_id: int, samples: int = 2) -> GroupRequest:
    tokens = np.array([1], np.int32)
    return GroupRequest(group_id, 1, tokens, tuple(range(samples)), SamplingParams())


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main(), 20))


def test_groups_wait_for_a_worker_and_travel_together():
    async def main():
        fleet, dispatcher, _ = make()
        tickets = [dispatcher.submit(request(i)) for i in range(4)]
        stub = await join(fleet, "a", answer)
        for i, ticket in enumerate(tickets):
            asked, rollouts = await ticket
            assert asked.group_id == i and [r.worker for r in rollouts] == ["a", "a"]
        assert stub.calls == [[0, 1, 2, 3]]  # twice its four slots
        assert fleet.workers["a"].assigned == 0
        await dispatcher.close()

    run(main)


def test_a_broken_connection_moves_its_groups_to_another_worker():
    async def main():
        fleet, dispatcher, lost = make()
        bad = await join(fleet, "bad", failing(grpc.StatusCode.UNAVAILABLE))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        await join(fleet, "good", answer)
        asked, rollouts = await ticket
        assert (asked.attempt, asked.min_version) == (2, 1)
        assert rollouts[0].worker == "good" and bad.calls == [[0]]
        assert lost == ["bad: UNAVAILABLE: told 0"] and dispatcher.reissued == 1
        await dispatcher.close()

    run(main)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN]
)
def test_a_group_that_workers_fail_at_is_not_tried_for_ever(code):
    async def main():
        fleet, dispatcher, _ = make()
        stubs = [await join(fleet, f"w{i}", failing(code)) for i in range(5)]
        with pytest.raises(WorkerError, match=rf"group 7 failed 3 times.*{code.name}: told 7"):
            await dispatcher.submit(request(7))
        assert sum(len(stub.calls) for stub in stubs) == MAX_FAILURES
        await dispatcher.close()

    run(main)


def test_a_request_that_is_wrong_is_not_tried_again():
    async def main():
        fleet, dispatcher, lost = make()
        stub = await join(fleet, "a", failing(grpc.StatusCode.INVALID_ARGUMENT))
        with pytest.raises(WorkerError, match="a refused: INVALID_ARGUMENT: told 3"):
            await dispatcher.submit(request(3))
        assert stub.calls == [[3]] and lost == []
        await dispatcher.close()

    run(main)


def test_an_error_that_nobody_foresaw_reaches_whoever_waits():
    async def main():
        fleet, dispatcher, _ = make()
        await join(fleet, "a", lambda spec: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await dispatcher.submit(request(0))
        await dispatcher.close()

    run(main)


def test_without_any_worker_groups_fail_by_name_of_the_deadline():
    async def main():
        _, dispatcher, _ = make(startup_s=0.05)
        tickets = [dispatcher.submit(request(i)) for i in range(3)]
        for ticket in tickets:
            with pytest.raises(DeadlineError, match=r"3 groups wait.*rlax.deadlines.startup_s"):
                await ticket
        await dispatcher.close()

    run(main)


def test_a_silent_worker_is_lost():
    async def main():
        fleet, _, lost = make(heartbeats_lost=1)
        await join(fleet, "a", answer)
        watch = asyncio.ensure_future(fleet.watch())
        while not lost:
            await asyncio.sleep(0.01)
        assert lost == ["a: no heartbeat for 0.02 s"] and fleet.workers == {}
        watch.cancel()
        await fleet.close()

    run(main)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config_hash": "xyz"}, "another config"),
        ({"version": 7}, "holds version 7 of an earlier trainer process"),
        ({"slots": 0}, "0 slots"),
    ],
)
def test_workers_that_do_not_belong_here_are_refused(changes, reason):
    async def main():
        fleet, _, _ = make()
        fields = {"worker": "a", "address": "127.0.0.1:1", "slots": 4, "config_hash": "abc"}
        reply = await fleet.Register(pb.RegisterRequest(**(fields | {"version": -1} | changes)), 0)
        assert not reply.accepted and reason in reply.reason and fleet.workers == {}

    run(main)


def test_a_worker_that_was_forgotten_may_come_back_with_its_weights():
    async def main():
        fleet, _, _ = make()
        await join(fleet, "a", answer)
        fleet.lose(fleet.workers["a"], "a hiccup")
        reply = await fleet.Heartbeat(pb.HeartbeatRequest(worker="a", version=3), None)
        assert not reply.known
        again = pb.RegisterRequest(
            worker="a", address="127.0.0.1:1", slots=4, config_hash="abc", version=3
        )
        assert (await fleet.Register(again, None)).accepted and fleet.workers["a"].ready
        await fleet.close()

    run(main)
