"""Groups that move from a slow worker to idle slots, and those that must stay."""

from typing import Any

import pytest
from dispatching import declared, reply_to, request
from mixed_fleets import holding, measured, mixed
from waiting import turns

from rlax_plugin.base.types import Key
from rlax_plugin.rpc import rlax_pb2 as pb

RATES = {"fast": 1.0, "other": 1.0, "slow": 0.1}
"""Tokens a second: 16 tokens take 16 s or 160 s, so that a second more or less does not count."""


async def test_a_group_begins_again_with_its_seeds_at_idle_slots():
    fleet, dispatcher, stubs = await mixed(*RATES)
    tickets = [dispatcher.submit(request(number, samples=4)) for number in range(3)]
    await turns()
    assert {name: stub.groups for name, stub in stubs.items()} == {
        "fast": [0], "other": [1], "slow": [2]
    }  # fmt: skip
    await measured(fleet, **RATES)
    assert len(stubs["slow"].requests) == 1 and dispatcher.again == []  # no slot is idle
    first = stubs["fast"].requests[0]
    stubs["fast"].replies[0].put_nowait(reply_to(first, 1, 2, 3, 4, finish="stop"))
    await tickets[0]
    await turns()
    moved = stubs["fast"].requests[1]
    assert (moved.key.group, moved.attempt) == (2, 2)
    assert list(moved.seeds) == [0, 1, 2, 3] and not moved.resume
    assert [(again.key.group, reason) for again, reason in dispatcher.again] == [
        (2, "fast ends it sooner than slow, which is slow")
    ]
    assert dispatcher.endings == ["moved"]
    assert stubs["slow"].cancelled == 1  # nothing else was in that call
    assert fleet.workers["slow"].assigned == fleet.workers["slow"].requests == 0
    stubs["fast"].replies[2].put_nowait(reply_to(moved, 5, 5, 5, 5, finish="stop"))
    completed = await tickets[2]
    assert completed.request.attempt == 2
    assert [worker.name for worker in completed.workers] == ["fast"]
    await dispatcher.close()


async def test_the_earlier_attempt_is_given_up_and_its_late_answer_is_ignored():
    fleet, dispatcher, stubs = await mixed("slow")
    slow, worker = stubs["slow"], fleet.workers["slow"]
    tickets = [dispatcher.submit(request(number, samples=4)) for number in range(2)]
    await turns()
    assert slow.groups == [0, 1]  # in one call
    fast = await holding(fleet, "fast")
    await measured(fleet, fast=1.0, slow=0.1)
    assert fast.groups == [0] and slow.unwanted == [(0, 1)] and slow.cancelled == 0
    assert worker.assigned == 8  # until it says so, it may still generate them
    # The answer to the first attempt was on its way: it is ignored, and no sign of a fault.
    slow.replies[0].put_nowait(reply_to(slow.requests[0], 9, 9, 9, 9, finish="stop"))
    await turns()
    assert not tickets[0].done() and worker.assigned == 4
    assert dispatcher.late == 0 and worker.suspicion == {}
    fast.replies[0].put_nowait(reply_to(fast.requests[0], 5, 5, 5, 5, finish="stop"))
    assert [len(s.tokens) for s in (await tickets[0]).samples] == [5, 5, 5, 5]
    await turns()
    assert fast.groups == [0, 1] and slow.cancelled == 1 and worker.assigned == 0
    await dispatcher.close()


async def stuck(**changes: Any) -> Any:
    """A group that only the slow worker has room for, and a fast one that becomes idle."""
    fleet, dispatcher, stubs = await mixed(*RATES)
    tickets = [dispatcher.submit(request(number, samples=4)) for number in range(2)]
    tickets.append(dispatcher.submit(request(2, samples=4, **changes)))
    await turns()
    assert stubs["slow"].groups == [2]
    await measured(fleet, **RATES)
    return fleet, dispatcher, stubs, tickets


async def becomes_idle(stubs: Any, tickets: Any) -> None:
    first = stubs["fast"].requests[0]
    stubs["fast"].replies[0].put_nowait(reply_to(first, 1, 2, 3, 4, finish="stop"))
    await tickets[0]
    await turns()


async def test_a_group_continues_from_the_tokens_that_its_worker_has_reported():
    fleet, dispatcher, stubs, tickets = await stuck()
    stubs["slow"].replies[2].put_nowait(reply_to(stubs["slow"].requests[0], 3, 1, 2, 2))
    fleet.newest.number = 6  # under which it could not begin again
    await turns()
    await becomes_idle(stubs, tickets)
    moved = stubs["fast"].requests[1]
    assert (moved.key.group, moved.attempt) == (2, 2)
    assert [len(one.tokens) // 4 for one in moved.resume] == [3, 1, 2, 2]  # int32
    assert dispatcher.tokens_resumed == 8
    stubs["fast"].replies[2].put_nowait(reply_to(moved, 5, 5, 5, 5, finish="stop"))
    completed = await tickets[2]
    assert [worker.name for worker in completed.workers] == ["slow", "fast"]
    assert {s.versions[0] for s in completed.samples} == {5}  # its oldest token's
    await dispatcher.close()


@pytest.mark.parametrize(
    "reason", ["version", "seeds", "engine", "moving", "waits", "purpose", "failed"]
)
async def test_a_group_stays_where_a_move_could_change_its_tokens_or_fail(reason: str):
    purpose = {"key": Key("evaluate", 2)} if reason == "purpose" else {}
    fleet, dispatcher, stubs, tickets = await stuck(**purpose)
    workers = fleet.workers
    if reason == "version":  # the next one; what began with the last one cannot be repeated
        fleet.newest.number = 6
    elif reason in ("seeds", "engine"):
        changes = {"seeded": False} if reason == "seeds" else {"vocabulary": 999}
        for name in ("slow", "fast", "other")[reason == "engine" :]:
            beats = pb.HeartbeatRequest(worker=name, version=5, process="p")
            beats.capabilities.CopyFrom(declared(4, **changes))
            assert (await fleet.Heartbeat(beats, None)).known
    elif reason == "failed":
        for call in dispatcher._calls.values():
            for ticket in call.open.values():
                ticket.failed_on.add(workers["fast"].identity)
    elif reason == "moving":
        dispatcher._by_speed = False
    elif reason == "waits":
        tickets += [dispatcher.submit(request(n, samples=4)) for n in range(3, 9)]
    await becomes_idle(stubs, tickets)
    assert dispatcher.again == [] and stubs["slow"].cancelled == 0
    assert workers["slow"].assigned == 4
    await dispatcher.close()
