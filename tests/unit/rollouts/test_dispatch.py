"""Who is asked what, and what becomes of groups whose worker fails; the workers are scripts."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import grpc
import numpy as np
import pytest
from dispatching import (
    STOP,
    Script,
    answer,
    failing,
    join,
    make,
    partial,
    request,
    run,
)

from rlax_plugin.errors import DeadlineError, WorkerError
from rlax_plugin.rollouts.dispatch import MAX_ATTEMPTS, MAX_FAILURES
from rlax_plugin.rollouts.fleet import Fleet
from rlax_plugin.rollouts.replies import check_reply
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.wire import reply_from_proto
from rlax_plugin.types import GroupRequest, SamplingParams


def test_groups_wait_for_a_worker_and_travel_together():
    async def main():
        fleet, dispatcher, _ = make()
        tickets = [dispatcher.submit(request(i)) for i in range(4)]
        stub = await join(fleet, "a", answer)
        for i, ticket in enumerate(tickets):
            asked, rollouts, workers = await ticket
            assert asked.group_id == i and [r.worker for r in rollouts] == ["a", "a"]
            assert workers == (fleet.workers["a"],)
        assert stub.calls == [[0, 1, 2, 3]]  # twice its four slots
        assert fleet.workers["a"].assigned == fleet.workers["a"].groups == 0
        await dispatcher.close()

    run(main)


def test_a_broken_connection_moves_its_groups_to_another_worker():
    async def main():
        fleet, dispatcher, lost = make()
        bad = await join(fleet, "bad", failing(grpc.StatusCode.UNAVAILABLE))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        await join(fleet, "good", answer)
        asked, rollouts, _ = await ticket
        assert (asked.attempt, asked.min_version) == (2, 1)
        assert rollouts[0].worker == "good" and bad.calls == [[0]]
        assert lost == ["bad: UNAVAILABLE: told 0"] and dispatcher.reissued == 1
        await dispatcher.close()

    run(main)


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
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


class Clock:
    """``time`` and ``asyncio`` for the fleet: time passes when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("rlax_plugin.rollouts.fleet.time", self)
        monkeypatch.setattr("rlax_plugin.rollouts.fleet.asyncio", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            await asyncio.sleep(0)

    async def passes(self, seconds: float) -> None:
        """At once, and whoever has slept until then has his turn."""
        self.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def test_a_pause_of_the_controller_itself_loses_nobody(monkeypatch):
    clock = Clock(monkeypatch)

    async def main():
        fleet, _, lost = make(heartbeats_lost=10)  # 0.2 s in all
        await join(fleet, "a", answer)
        worker = fleet.workers["a"]
        watch = asyncio.ensure_future(fleet.watch())
        await clock.passes(0.05)
        await clock.passes(0.5)
        # What the worker sent meanwhile is handled only after the watch has woken up.
        worker.last_seen = clock.now
        for _ in range(19):
            await clock.passes(0.01)
        assert lost == []
        for _ in range(6):  # now it is really silent, for as long as a watch may sleep
            await clock.passes(0.01)
        assert lost == ["a: no heartbeat for 0.2 s"]
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
        reply = await fleet.Heartbeat(pb.HeartbeatRequest(worker="a", version=3, process="p"), None)
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
        one.lose(one.workers["a"], "killed")
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
        answered, rollouts, workers = await ticket
        assert [r.worker for r in rollouts] == ["bad+good", "bad+good"]
        assert [w.name for w in workers] == ["bad", "good"]
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

        async def generate(asked: pb.GenerateRequest) -> Any:
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
        asked, *_ = await tickets[0]
        assert asked.attempt == 2 and [len(r.tokens) for r in asked.resume] == [2, 2]
        await dispatcher.close()

    run(main)


def first_complete(tokens: int) -> Script:
    """The first sample ends after two tokens, the second has so many; then the worker is lost."""

    def script(spec: pb.GroupSpec) -> Any:
        reply = partial(spec.group_id, spec.seeds, 2, tokens)
        reply.samples[0].CopyFrom(
            partial(spec.group_id, spec.seeds, 2, 0, reason="stop").samples[0]
        )
        yield reply
        yield GONE(spec)

    return script


def test_a_sample_names_those_who_drew_it():
    async def main():
        fleet, dispatcher, _ = make()
        await join(fleet, "a", first_complete(1))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        await join(fleet, "b", first_complete(4))
        while dispatcher.reissued < 2:
            await asyncio.sleep(0.01)
        await join(fleet, "c", answer)
        _, rollouts, workers = await ticket
        assert [r.worker for r in rollouts] == ["a", "a+b+c"]
        assert [len(r.tokens) for r in rollouts] == [2, 5]
        assert [w.name for w in workers] == ["a", "b", "c"]
        assert [w.lost != "" for w in workers] == [True, True, False]
        await dispatcher.close()

    run(main)


async def quarantine(fleet: Fleet, name: str, process: str = "p") -> None:
    told = pb.DeregisterRequest(worker=name, quarantine="a canary died", process=process)
    await fleet.Deregister(told, None)


def test_what_waits_forgets_what_a_quarantined_worker_drew():
    async def main():
        fleet, dispatcher, _ = make()
        await join(fleet, "bad", reporting((4, 3)))
        ticket = dispatcher.submit(request(0))
        while not dispatcher.reissued:
            await asyncio.sleep(0.01)
        await quarantine(fleet, "bad")  # it is lost already
        good = await join(fleet, "good", answer)
        _, rollouts, workers = await ticket
        assert len(good.specs[0].resume) == 0 and dispatcher.tokens_resumed == 0
        assert [r.worker for r in rollouts] == ["good"] * 2 and [w.name for w in workers] == [
            "good"
        ]
        await dispatcher.close()

    run(main)


def test_an_answer_that_goes_on_from_a_quarantined_workers_tokens_is_refused():
    async def main():
        fleet, dispatcher, lost = make()
        await join(fleet, "bad", reporting((4, 3)))
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        go = asyncio.Event()
        good = await join(fleet, "good", answer)
        generate = good.Generate

        async def slow(*args: Any, **kwargs: Any) -> Any:
            async for reply in generate(*args, **kwargs):
                await go.wait()
                yield reply

        good.Generate = slow
        while not good.specs:
            await asyncio.sleep(0.01)
        await quarantine(fleet, "bad")
        go.set()
        asked, rollouts, workers = await ticket
        assert [len(spec.resume) for spec in good.specs] == [2, 0]
        assert asked.attempt == 3 and [len(r.tokens) for r in rollouts] == [1, 1]
        assert workers == (fleet.workers["good"],) and len(lost) == 1
        assert workers[0].assigned == workers[0].groups == 0
        await dispatcher.close()

    run(main)


def test_workers_that_hold_the_version_are_asked_first():
    async def main():
        fleet, dispatcher, _ = make()
        old = await join(fleet, "old", answer, slots=64)
        await join(fleet, "new", answer, version=5)
        fleet.workers["new"].assigned = 2
        found = await dispatcher.submit(dataclasses.replace(request(0), min_version=5))
        assert found.workers == (fleet.workers["new"],) and old.calls == []
        await dispatcher.close()

    run(main)


def test_attempts_of_earlier_trainer_processes_do_not_count():
    async def main():
        fleet, dispatcher, _ = make()
        await join(fleet, "bad", GONE)
        ticket = dispatcher.submit(dataclasses.replace(request(0), attempt=MAX_ATTEMPTS + 5))
        await asyncio.sleep(0.01)
        await join(fleet, "good", answer)
        assert (await ticket).request.attempt == MAX_ATTEMPTS + 6
        await dispatcher.close()

    run(main)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"newest": 4}, "sample 0 was generated with a weight version above 4"),
        ({"min_version": 6}, "sample 0 was generated with a weight version below 6"),
        ({"most": 4}, "sample 1 has 5 tokens, 4 were asked for"),
        ({"resume": (3, 2)}, None),
        ({"resume": (3, 2), "tokens": 7}, "sample 0 does not continue the unfinished sample"),
        ({"resume": (5, 2)}, "sample 0 does not continue"),
        ({"resume": (3, 2), "reason": "stop"}, "sample 0 does not continue"),
    ],
)
def test_answers_are_held_against_what_was_asked(changes, message):
    """Of two samples of 4 and 5 tokens, drawn with version 5."""
    asked = dataclasses.replace(
        request(0),
        min_version=changes.get("min_version", 0),
        sampling=SamplingParams(max_new_tokens=changes.get("most", 16), stop_ids=(STOP,)),
    )
    if lengths := changes.get("resume"):
        report = partial(0, (0, 1), *lengths, reason=changes.get("reason", "cancelled"))
        asked = dataclasses.replace(asked, resume=tuple(reply_from_proto(report, "a", (0, 1))))
    rollouts = reply_from_proto(partial(0, (0, 1), 4, 5, reason="stop"), "b", (0, 1))
    if "tokens" in changes:
        tokens = np.array([*[changes["tokens"]] * 3, STOP], np.int32)
        rollouts[0] = dataclasses.replace(rollouts[0], tokens=tokens)
    if message is None:
        check_reply(rollouts, asked, changes.get("newest", 9))
    else:
        with pytest.raises(WorkerError, match=f"b: group 0 {message}"):
            check_reply(rollouts, asked, changes.get("newest", 9))


def test_a_worker_that_answers_what_was_not_asked_is_not_trusted():
    async def main():
        fleet, dispatcher, lost = make()
        await join(fleet, "bad", lambda spec: partial(0, spec.seeds, 17, 1, reason="stop"))
        bad = fleet.workers["bad"]
        ticket = dispatcher.submit(request(0))
        await asyncio.sleep(0.01)
        await join(fleet, "good", answer)
        assert (await ticket).workers == (fleet.workers["good"],)
        assert lost == ["bad: bad: group 0 sample 0 has 17 tokens, 16 were asked for"]
        assert not bad.trusted
        await dispatcher.close()

    run(main)


# --- processes of the same name ------------------------------------------------------------------


def test_messages_of_another_process_of_that_name_are_ignored():
    async def main():
        fleet, _, lost = make()
        await join(fleet, "a", answer, process="new")
        stray = pb.HeartbeatRequest(worker="a", version=3, process="old")
        assert not (await fleet.Heartbeat(stray, None)).known
        await fleet.Deregister(pb.DeregisterRequest(worker="a", process="old"), None)
        assert fleet.workers["a"].version == 0 and lost == []
        await fleet.Deregister(pb.DeregisterRequest(worker="a", process="new"), None)
        assert fleet.workers == {} and lost == ["a: left"]
        await fleet.close()

    run(main)


def test_a_quarantine_is_of_the_process_that_said_it():
    async def main():
        fleet, _, lost = make()
        told: list[str] = []
        fleet._on_quarantined = lambda name, reason: told.append(name)
        await join(fleet, "a", answer, process="old")
        old = fleet.workers["a"]
        fleet.lose(old, "killed")
        await join(fleet, "a", answer, process="new")
        for _ in range(2):  # it is told until it is heard
            await quarantine(fleet, "a", "old")
        assert not old.trusted and fleet.workers["a"].trusted and told == ["a"]
        assert lost == ["a: killed"]
        register = pb.RegisterRequest(worker="a", slots=4, config_hash="abc", process="old")
        reply = await fleet.Register(register, None)
        assert not reply.accepted and reply.reason == "quarantined: a canary died"
        assert fleet.workers["a"].process == "new"
        await fleet.close()

    run(main)
