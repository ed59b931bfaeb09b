"""Who is asked what, and what becomes of groups whose worker fails; the workers are scripts."""

from __future__ import annotations

import asyncio
import dataclasses
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


def partial(group_id: int, seeds: Any, *lengths: int, reason: str = "cancelled") -> pb.GroupReply:
    """Samples of so many tokens: 0, 1, 2, ... drawn with version 5."""
    rollouts = []
    for i, (seed, n) in enumerate(zip(seeds, lengths, strict=True)):
        ids, logprob = np.arange(n, dtype=np.int32), np.full(n, -1, np.float32)
        versions = np.full(n, 5, np.int32)
        rollouts.append(Rollout(group_id, i, seed, ids, logprob, logprob, versions, reason))
    return reply_to_proto(group_id, rollouts)


def failing(code: grpc.StatusCode) -> Script:
    def fail(spec: pb.GroupSpec) -> pb.GroupReply:
        empty = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, empty, empty, details=f"told {spec.group_id}")

    return fail


class Stub:
    def __init__(self, script: Script):
        self.script, self.calls, self.specs = script, [], []

    async def Generate(self, request: pb.GenerateRequest, timeout: float) -> Any:
        self.calls.append([spec.group_id for spec in request.groups])
        for spec in request.groups:
            await asyncio.sleep(0)
            self.specs.append(spec)
            found = self.script(spec)
            for reply in [found] if isinstance(found, pb.GroupReply) else found:
                yield reply


def refresh(request: GroupRequest) -> GroupRequest:
    return dataclasses.replace(request, min_version=request.min_version + 1)


def make(refresh: Any = refresh, **deadlines: float) -> tuple[Fleet, Dispatcher, list[str]]:
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
    again: list[tuple[GroupRequest, str]] = []
    dispatcher = Dispatcher(fleet, settings, refresh, lambda *told: again.append(told))
    dispatcher.again = again  # for the tests
    return fleet, dispatcher, lost


async def join(fleet: Fleet, name: str, script: Script, slots: int = 4) -> Stub:
    request = pb.RegisterRequest(
        worker=name,
        address="127.0.0.1:1",
        slots=slots,
        config_hash="abc",
        version=-1,
        process="p",
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
            worker="a", address="127.0.0.1:1", slots=4, config_hash="abc", version=3, process="p"
        )
        assert (await fleet.Register(again, None)).accepted and fleet.workers["a"].ready
        await fleet.close()

    run(main)


def test_weights_that_this_trainer_process_did_not_publish_count_for_nothing():
    async def main():
        (one, *_), (two, *_) = make(), make()
        again = pb.RegisterRequest(
            worker="a", address="127.0.0.1:1", slots=4, config_hash="abc", version=7, process="p"
        )
        reply = await one.Register(again, None)
        assert reply.accepted and reply.incarnation == one.incarnation != two.incarnation
        assert one.workers["a"].version == -1 and not one.workers["a"].ready
        # The same process again, and another of its name.
        assert (await one.Register(again, None)).accepted and one.workers["a"].version == 7
        again.process = "p12"
        assert (await one.Register(again, None)).accepted and one.workers["a"].version == -1
        await one.close()

    run(main)


# --- groups that are resumed ---------------------------------------------------------------------


GONE = failing(grpc.StatusCode.UNAVAILABLE)


def reporting(*reports: tuple[int, ...], then: Script = GONE) -> Script:
    """Reports so many tokens per sample, one report after the other."""

    def script(spec: pb.GroupSpec) -> Any:
        for lengths in reports:
            yield partial(spec.group_id, spec.seeds, *lengths)
        yield then(spec)

    return script


def test_what_was_drawn_travels_along_to_the_next_worker():
    async def main():
        asked: list[GroupRequest] = []

        def keep(request: GroupRequest) -> GroupRequest:
            asked.append(request)
            return dataclasses.replace(request, min_version=4)

        fleet, dispatcher, _ = make(keep)
        await join(fleet, "bad", reporting((1, 0), (4, 3), (3, 3)))  # the last one is older
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        assert not ticket.done()
        good = await join(fleet, "good", answer)
        answered, rollouts = await ticket
        assert [r.worker for r in rollouts] == ["good", "good"]
        assert (answered.attempt, answered.min_version) == (2, 4)
        (spec,) = good.specs
        assert [np.frombuffer(s.tokens, np.int32).tolist() for s in spec.resume] == [
            [0, 1, 2, 3],
            [0, 1, 2],
        ]
        assert [s.finish_reason for s in spec.resume] == ["cancelled", "cancelled"]
        assert (asked[0].attempt, asked[0].min_version) == (2, 0)
        assert [len(r.tokens) for r in asked[0].resume] == [4, 3]
        assert dispatcher.tokens_resumed == 7 and dispatcher.reissued == 1
        ((told, reason),) = dispatcher.again
        assert told is answered and reason == "UNAVAILABLE: told 0"
        assert fleet.workers["good"].assigned == 0
        await dispatcher.close()

    run(main)


def test_partials_that_are_refused_are_forgotten_and_none_are_sent():
    async def main():
        def drop(request: GroupRequest) -> GroupRequest:
            return dataclasses.replace(request, resume=())

        fleet, dispatcher, _ = make(drop)
        await join(fleet, "one", reporting((4, 3)))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        two = await join(fleet, "two", reporting((1, 0)))
        while not two.specs:
            await asyncio.sleep(0.01)
        three = await join(fleet, "three", answer)
        await ticket
        assert [len(stub.specs[0].resume) for stub in (two, three)] == [0, 0]
        assert dispatcher.tokens_resumed == 0 and dispatcher.reissued == 2
        await dispatcher.close()

    run(main)


def test_a_report_without_tokens_is_nothing_to_resume():
    async def main():
        fleet, dispatcher, _ = make()
        await join(fleet, "bad", reporting((0, 0)))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        good = await join(fleet, "good", answer)
        await ticket
        assert len(good.specs[0].resume) == 0 and dispatcher.tokens_resumed == 0
        await dispatcher.close()

    run(main)


def test_what_a_worker_reported_before_it_answered_nonsense_is_not_resumed():
    async def main():
        fleet, dispatcher, lost = make()
        nonsense = partial(0, (0, 1), 0, 2, reason="stop")
        await join(fleet, "bad", reporting((4, 3), then=lambda spec: nonsense))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        good = await join(fleet, "good", answer)
        await ticket
        assert lost == ["bad: bad: group 0 sample 0 is empty"]
        assert len(good.specs[0].resume) == 0 and dispatcher.tokens_resumed == 0
        await dispatcher.close()

    run(main)


def test_one_call_that_a_draining_worker_ends_leaves_its_others_open():
    async def main():
        fleet, dispatcher, lost = make()
        ends = [asyncio.Event(), asyncio.Event()]

        async def generate(asked: pb.GenerateRequest, timeout: float) -> Any:
            (spec,) = asked.groups
            yield partial(spec.group_id, spec.seeds, 2, 2)
            await ends[spec.group_id].wait()
            if spec.group_id == 0:
                failing(grpc.StatusCode.UNAVAILABLE)(spec)
            yield answer(spec)

        (await join(fleet, "a", answer)).Generate = generate
        tickets = []
        for i in range(2):
            tickets.append(dispatcher.submit(request(i)))
            await asyncio.sleep(0.01)
        worker = fleet.workers["a"]
        worker.draining = True
        assert worker.assigned == 4
        ends[0].set()
        while worker.assigned != 2:
            await asyncio.sleep(0.01)
        assert lost == [] and not tickets[1].done()
        ends[1].set()
        assert (await tickets[1])[0].attempt == 1
        await join(fleet, "b", answer)
        asked, _ = await tickets[0]
        assert asked.attempt == 2 and [len(r.tokens) for r in asked.resume] == [2, 2]
        await dispatcher.close()

    run(main)
