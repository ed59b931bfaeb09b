"""A group expires once heartbeats have shown no progress of it for too long, and only that one."""

import functools
import math
from collections.abc import Callable
from typing import Any

import dispatching
import pytest
from dispatching import HeldClock, answer, join, request
from part_stubs import EngineStub
from waiting import eventually, turns

from rlax_plugin.base.errors import DeadlineError, WorkerError
from rlax_plugin.base.types import Key, Request, Sampled
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.fleet.dispatch import MAX_FAILURES, Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.progress import Answers, Attempt, Progress
from rlax_plugin.rollout.worker.progress import ProgressReport
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto, key_to_proto
from rlax_plugin.testing import make_request, make_sampled

GROUP_S = 10.0


def one(group: int, attempt: int = 1) -> Attempt:
    return Key("train", group), attempt


def watched(*attempts: Attempt) -> tuple[Progress, list[tuple[Attempt, float]]]:
    """With a heartbeat per 2 s; and which groups have expired, after how long."""
    progress, expired = Progress(GROUP_S, 2.0), []
    for attempt in attempts:
        progress.watch(attempt, lambda still_s, a=attempt: expired.append((a, still_s)))
    return progress, expired


def test_a_group_that_comes_further_never_expires():
    progress, expired = watched(one(0), one(1))
    for beat in range(100):
        progress.heard({one(0): beat, one(1): beat // 5}, 2.0)  # one moves every 10 s
    assert expired == []


def test_a_worker_is_busy_from_its_first_request_to_its_last_answer():
    progress, _ = watched(one(0), one(1))
    progress.forget(one(0))
    ((began, ended),) = progress.take_busy()  # it goes on
    progress.forget(one(1))
    progress.forget(one(1))
    ((again, last),) = progress.take_busy()
    assert began <= ended == again <= last
    assert progress.take_busy() == []
    progress.watch(one(2), print)
    ((later, _),) = progress.take_busy()
    assert later >= last


def test_a_group_that_stands_still_expires_once():
    progress, expired = watched(one(0), one(1), one(2))
    for beat in range(20):
        progress.heard({one(0): beat, one(1): min(beat, 3)}, 2.0)  # nothing is ever told of 2
    # Heard first at 0 s, and for the last time to have moved at 6 s: 12 s are above 10 s.
    assert expired == [(one(2), 12.0), (one(1), 12.0)]
    assert progress.forget(one(1)) == 2.0 * (19 - 3) and progress.forget(one(1)) == 0.0


def test_time_in_which_nothing_is_heard_does_not_count():
    progress, expired = watched(one(0))
    for _ in range(3):
        progress.heard({one(0): 7}, 1000.0)  # this process was paused, or the worker was
    assert expired == []
    assert progress.forget(one(0)) == 2 * 4.0  # two intervals each time but the first


def test_attempts_of_a_group_are_told_apart():
    progress, expired = watched(one(0, 1), one(0, 2))
    for beat in range(20):
        progress.heard({one(0, 1): 5, one(0, 2): beat}, 2.0)
    assert [attempt for attempt, _ in expired] == [one(0, 1)]


def answers_of(seconds: float, tokens: int) -> Answers:
    answers = Answers()
    answers.note(seconds, tokens)
    return answers


def limited(weights_s: float = 8.0, needs: int = 0) -> tuple[Progress, list[float]]:
    """A request of at most 5 tokens, where others take 1 s a token: it has 3 * 10 s + 8 * 5 s."""
    progress, expired = Progress(GROUP_S, 2.0, weights_s, answers_of(30.0, 30)), []
    progress.watch(one(0), expired.append, tokens=5, needs=needs)
    return progress, expired


def test_progress_without_end_is_given_up_after_what_the_tokens_may_take():
    progress, expired = limited()
    for beat in range(35):
        progress.heard({one(0): beat}, 2.0)
    assert expired == [] and progress.overdue(one(0)) is None
    for beat in range(5):
        progress.heard({one(0): 100 + beat}, 2.0)
    assert expired == [0.0]  # once, and it never stood still
    assert progress.overdue(one(0)) == (80.0, 70.0)


def test_the_time_begins_again_when_tokens_arrive():
    progress, expired = limited()
    for beat in range(100):
        if beat % 30 == 29:
            progress.came(one(0))
        progress.heard({one(0): beat}, 2.0)
    assert expired == []


@pytest.mark.parametrize("how", [{"loading": True}, {"version": 3}])
def test_loading_weights_adds_what_its_own_deadline_allows(how: dict[str, Any]):
    progress, expired = limited(needs=4)
    for beat in range(39):
        progress.heard({one(0): beat}, 2.0, **{"version": 4} | how)
    assert expired == []  # 70 s, and 8 s for weights
    progress.heard({one(0): 99}, 2.0, **{"version": 4} | how)
    assert expired == [0.0]


def test_the_slower_pace_counts_and_without_answers_there_is_none():
    progress, expired = limited()
    progress.watch(one(1), print)
    progress._watched[one(1)].sent_s -= 500.0
    progress.answered(one(1), 10)  # its own: 50 s a token
    for beat in range(600):
        progress.heard({one(0): beat}, 2.0)
    assert expired == []
    unknown = Progress(GROUP_S, 2.0)
    unknown.watch(one(0), expired.append, tokens=5)
    for beat in range(600):
        unknown.heard({one(0): beat}, 2.0)
    assert expired == []


def seconds_until_overdue(progress: Progress, group: int, tokens: int = 5) -> float:
    expired: list[float] = []
    progress.watch(one(group), expired.append, tokens=tokens)
    beat = 0
    while not expired and beat < 2000:
        beat += 1
        progress.heard({one(group): beat}, 2.0)
    found = progress.overdue(one(group))
    progress.forget(one(group))
    return found[1] if found else math.inf


def test_a_slow_worker_is_judged_by_its_own_pace_once_a_request_was_overdue():
    progress = Progress(GROUP_S, 2.0, 8.0, answers_of(30.0, 30))
    assert seconds_until_overdue(progress, 0) == 3 * GROUP_S + 8 * 5 * 1.0
    # It may be eight times as slow as the others, and one that never answers gets no more.
    assert [seconds_until_overdue(progress, group) for group in (1, 2)] == [30.0 + 8 * 5 * 8.0] * 2
    other = Progress(GROUP_S, 2.0, 8.0, progress._all)
    assert seconds_until_overdue(other, 0) == 70.0  # the pace of the fleet is that of answers


def test_an_answer_that_comes_too_late_shows_the_pace():
    progress, expired = limited()
    for _ in range(7):
        progress.heard({one(0): 3}, 2.0)
    assert expired == [12.0]  # it stood still
    progress._watched[one(0)].sent_s -= 15.0
    progress.answered_late(one(0))
    progress.forget(one(0))
    assert seconds_until_overdue(progress, 1) == pytest.approx(30.0 + 8 * 5 * 3.0, rel=0.01)
    progress.answered_late(one(9))  # it is not known


# --- what the dispatcher makes of it -------------------------------------------------------------


CLOCK = HeldClock()
make = functools.partial(dispatching.make, clock=CLOCK)


async def beat(fleet: Fleet, name: str, *moves: tuple[int, int, int]) -> None:
    """A heartbeat that tells (group, attempt, moves)."""
    told = [
        pb.Progress(key=key_to_proto(Key("train", group)), attempt=attempt, moves=number)
        for group, attempt, number in moves
    ]
    message = pb.HeartbeatRequest(worker=name, version=0, process="p", progress=told)
    CLOCK.now += 0.01
    assert (await fleet.Heartbeat(message, None)).known
    await turns()


async def beats(fleet: Fleet, name: str, until: Callable[[], Any], *still: int) -> None:
    """Heartbeats in which the groups ``still`` stand still and the others, up to 9, move."""
    number = 0
    while not until():
        number += 1
        moves = [(g, 1, 0 if g in still else number) for g in range(10)]
        await beat(fleet, name, *moves)


async def test_only_the_group_that_stands_still_is_issued_again():
    fleet, dispatcher, lost = make(group_s=0.05)
    held = await join(fleet, "a", answer, slots=64, held=True)
    tickets = [dispatcher.submit(request(i)) for i in range(3)]
    await eventually(lambda: held.calls)
    assert held.calls == [[0, 1, 2]]
    await join(fleet, "b", answer)
    await beats(fleet, "a", tickets[1].done, 1)
    asked, _, workers = await tickets[1]
    assert asked.attempt == 2 and [w.name for w in workers] == ["b"]
    (again,) = dispatcher.again
    assert again[0].key == Key("train", 1)
    assert "no progress for " in again[1] and "rlax.deadlines.group_s is 0.05" in again[1]
    # Its late answer is counted, and the others of the call are answered as ever.
    assert held.ended == 0 and fleet.workers["a"].assigned == 6
    for i in (1, 0):
        held.go[i].set()
    await tickets[0]
    await eventually(lambda: dispatcher.late)
    assert fleet.workers["a"].progress._at_least_s > 0.0  # it shows how slow the worker is
    held.go[2].set()
    await tickets[2]
    await eventually(lambda: held.ended)
    assert [t.result().request.attempt for t in tickets] == [1, 2, 1]
    assert dispatcher.late == 1 and dispatcher.reissued == 1 and lost == []
    assert fleet.workers["a"].assigned == fleet.workers["a"].requests == 0
    await dispatcher.close()


async def test_a_call_ends_once_the_groups_that_have_not_expired_are_answered():
    fleet, dispatcher, lost = make(group_s=0.05)
    held = await join(fleet, "a", answer, slots=64, held=True)
    tickets = [dispatcher.submit(request(i)) for i in range(2)]
    await eventually(lambda: held.calls)
    await join(fleet, "b", answer)
    await beats(fleet, "a", tickets[1].done, 1)
    held.go[0].set()
    await tickets[0]
    # Group 1 will never be answered there, and nobody waits for it.
    await eventually(lambda: held.ended)
    assert fleet.workers["a"].assigned == fleet.workers["a"].requests == 0
    assert [t.result().request.attempt for t in tickets] == [1, 2] and lost == []
    await dispatcher.close()


async def test_an_engine_that_hangs_loses_its_groups_and_the_call_is_ended():
    fleet, dispatcher, lost = make(group_s=0.05)
    hung = await join(fleet, "a", answer, slots=64, held=True)
    tickets = [dispatcher.submit(request(i)) for i in range(3)]
    await eventually(lambda: hung.calls)
    fine = await join(fleet, "b", answer)
    await beats(fleet, "a", lambda: all(t.done() for t in tickets), 0, 1, 2)
    assert {t.result().workers[0].name for t in tickets} == {"b"}
    assert sorted(i for call in fine.calls for i in call) == [0, 1, 2]
    await eventually(lambda: hung.ended)
    await turns()
    assert fleet.workers["a"].assigned == 0 and lost == [] and dispatcher.late == 0
    await dispatcher.close()


async def test_a_group_that_stands_still_everywhere_ends_by_name_of_the_deadline():
    fleet, dispatcher, _ = make(group_s=0.03)
    held = await join(fleet, "a", answer, slots=64, held=True)
    ticket = dispatcher.submit(request(0))
    while not ticket.done():
        await beat(fleet, "a")
    message = rf"group 0 failed {MAX_FAILURES} times.*no progress for .* rlax.deadlines.group_s"
    with pytest.raises(WorkerError, match=message):
        await ticket
    assert held.calls == [[0]] * MAX_FAILURES
    await dispatcher.close()


async def test_a_worker_that_is_stuck_does_not_get_the_same_group_again():
    fleet, dispatcher, _ = make(group_s=0.03)
    stuck = await join(fleet, "stuck", answer, slots=64, held=True)
    fine = await join(fleet, "fine", answer)
    fleet.workers["fine"].assigned = 8  # it has no room yet
    ticket = dispatcher.submit(request(0))
    while not dispatcher.reissued:
        await beat(fleet, "stuck")
    dispatcher.wake()
    later = dispatcher.submit(request(1))  # does not have to wait behind it
    await eventually(lambda: len(stuck.calls) >= 2)
    assert stuck.calls == [[0], [1]] and fine.calls == []
    fleet.workers["fine"].assigned = 0
    dispatcher.wake()
    assert (await ticket).workers[0].name == "fine"
    stuck.go[1].set()
    assert (await later).workers[0].name == "stuck"
    await dispatcher.close()


class Slow:
    def needed_s(self, name: str) -> float:
        return 31.0


async def test_what_waits_for_workers_in_vain_hears_how_long_one_would_have_needed():
    fleet, _, _ = make(startup_s=0.05)
    dispatcher = Dispatcher(fleet, Deadlines(startup_s=0.05), pace=Slow())
    why = "for which 1 groups wait.*0.05 s.*needed about 31 s.*rlax.deadlines.startup_s"
    with pytest.raises(DeadlineError, match=why):
        await dispatcher.submit(request(0))
    await dispatcher.close()


# --- what a worker tells --------------------------------------------------------------------------


class Engine(EngineStub):
    """Holds version 3."""

    version = 3


class Telling(Engine):
    def __init__(self) -> None:
        self.figures: dict[Attempt, int] = {}

    def progress(self) -> dict[Attempt, int]:
        return self.figures


def asked(group: int, min_version: int = 0, resume: tuple[Sampled, ...] = ()) -> Request:
    return make_request(group, samples=1, min_version=min_version, resume=resume)


def begun_with(version: int) -> Sampled:
    return make_sampled(1, version=version, finish=None)


def moved(report: ProgressReport, requests: list[Request], **told: Any) -> list[bool]:
    """Which groups are told to have come further, from one heartbeat to the next."""
    settings = {"health": {}, "delivered": 0, "loading": False} | told
    before = report.take(requests, **settings)
    after = report.take(requests, **(settings | told))
    return [a.moves != b.moves for a, b in zip(before, after, strict=True)]


def test_an_engine_tells_of_each_group():
    engine = Telling()
    report = ProgressReport(engine)
    requests = [asked(0), asked(1), asked(2)]
    engine.figures = {one(0): 5, one(1): 9}
    first = report.take(requests, {}, delivered=0, loading=False)
    engine.figures = {one(0): 6, one(1): 9, one(1, 2): 10, (Key("train", 1, 0, 0, 1), 1): 10}
    # Others were delivered, and the engine as a whole goes on: that is nothing to group 1.
    second = report.take(requests, {"tokens_total": 50.0}, delivered=4, loading=False)
    assert [a.moves != b.moves for a, b in zip(first, second, strict=True)] == [True, False, False]
    told = [(key_from_proto(found.key), found.attempt) for found in second]
    assert told == [one(0), one(1), one(2)]


def test_a_group_whose_weights_are_being_loaded_comes_further():
    report = ProgressReport(Telling())
    requests = [asked(0, 3), asked(1, 4), asked(2, 0, (begun_with(4),)), asked(3, 0)]
    assert moved(report, requests, loading=True) == [False, True, True, False]
    assert moved(report, requests, loading=False) == [False] * 4


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ({"tokens_total": 4.0}, {"tokens_total": 5.0}, True),
        ({"steps_total": 4.0}, {"steps_total": 5.0}, True),
        ({"tokens_total": 4.0, "active": 1.0}, {"tokens_total": 4.0, "active": 2.0}, False),
        ({}, {}, False),
    ],
)
def test_of_an_engine_that_tells_nothing_its_figures_are_seen(first, second, expected):
    report, requests = ProgressReport(Engine()), [asked(0), asked(1, 4)]
    before = report.take(requests, first, delivered=1, loading=False)
    after = report.take(requests, second, delivered=1, loading=False)
    found = [a.moves != b.moves for a, b in zip(before, after, strict=True)]
    assert found == [expected] * 2


def test_of_an_engine_that_tells_nothing_loading_and_deliveries_are_seen():
    report, requests = ProgressReport(Engine()), [asked(0)]
    assert moved(report, requests, loading=True) == [True]
    before = report.take(requests, {}, delivered=1, loading=False)
    after = report.take(requests, {}, delivered=2, loading=False)
    assert before[0].moves != after[0].moves


def test_a_request_that_its_worker_does_not_have_is_known():
    progress, _ = watched(one(0), one(1))
    assert not progress.unknown(one(0))  # no heartbeat has come since
    progress.heard({one(1): 0}, 2.0)
    assert progress.unknown(one(0)) and not progress.unknown(one(1))
    progress.forget(one(0))
    assert not progress.unknown(one(0)) and not progress.unknown(one(2))
