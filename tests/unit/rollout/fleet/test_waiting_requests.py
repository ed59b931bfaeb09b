"""The order in which waiting requests are sent, and how much a worker is given."""

import asyncio

import pytest
from dispatching import answer, join, make, request
from waiting import eventually, turns

from rlax_plugin.base.types import Key
from rlax_plugin.rollout.fleet.progress import unfinished_of
from rlax_plugin.rollout.fleet.tickets import Ticket
from rlax_plugin.rollout.fleet.waiting_requests import WaitingRequests
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_to_proto


def ticket(number: int, expected: float = 0.0, version: int = 0, **changes) -> Ticket:
    one = request(number, min_version=version, **changes)
    return Ticket(one, asyncio.Future(loop=LOOP), expected_tokens=expected)


LOOP = asyncio.new_event_loop()


def order(waiting: WaitingRequests) -> list[int]:
    return [waiting.take().request.key.group for _ in range(len(waiting))]


def test_the_longest_come_first_among_those_that_train_in_the_same_step() -> None:
    waiting = WaitingRequests()
    told = [(0, 10, 1), (1, 30, 1), (2, 20, 1), (3, 90, 2), (4, 30, 1), (5, 1, 0)]
    for number, expected, version in told:
        waiting.add(ticket(number, expected, version))
    assert order(waiting) == [5, 1, 4, 2, 0, 3]


def test_those_issued_again_come_first_and_then_later_turns() -> None:
    waiting = WaitingRequests()
    again = ticket(3, 1)
    again.losses = 1
    for one in (ticket(0, 50), ticket(1, 60), again, ticket(9, key=Key("train", 9, 0, 0, 1))):
        waiting.add(one)
    assert order(waiting) == [3, 9, 1, 0]


def test_one_that_is_put_back_has_the_place_that_it_had() -> None:
    waiting = WaitingRequests()
    for number in range(3):
        waiting.add(ticket(number, 7))
    waiting.add(waiting.take())
    assert order(waiting) == [0, 1, 2]


def test_one_that_comes_back_to_another_queue_is_before_later_ones() -> None:
    first, later = WaitingRequests(), WaitingRequests()
    lost = ticket(0)
    first.add(lost)
    assert first.take() is lost
    later.add(ticket(1))
    later.add(lost)  # the queue that it came from is gone, and all else is equal
    assert order(later) == [0, 1]


def heartbeat(*unfinished: int | None) -> pb.HeartbeatRequest:
    """Reports the unfinished samples of groups 0, 1, ..."""
    progress = [
        pb.Progress(key=key_to_proto(Key("train", group)), attempt=1, unfinished=count)
        for group, count in enumerate(unfinished)
    ]
    return pb.HeartbeatRequest(worker="a", version=0, process="p", progress=progress)


async def test_samples_that_have_ended_make_room_although_their_group_goes_on() -> None:
    fleet, dispatcher, lost = make()
    stub = await join(fleet, "a", answer, slots=4, held=True)
    done = [dispatcher.submit(request(group, samples=4)) for group in range(4)]
    await eventually(lambda: stub.calls)
    worker = fleet.workers["a"]
    # 8 of twice 4 slots; with 3 of a group's samples ended 5 are left, more than its slots.
    assert stub.calls == [[0, 1]] and worker.assigned == 8
    await fleet.Heartbeat(heartbeat(1, 4), None)
    await turns()
    assert stub.calls == [[0, 1]] and worker.assigned == 5
    await fleet.Heartbeat(heartbeat(1, 3), None)  # 4 + 4 are twice its slots
    await eventually(lambda: len(stub.calls) >= 2)
    assert stub.calls == [[0, 1], [2]] and worker.assigned == 8
    # A heartbeat that was sent before cannot take the room back, nor one that says nothing.
    await fleet.Heartbeat(heartbeat(4, 4, None), None)
    assert worker.assigned == 8 and worker.requests == 3
    await fleet.Heartbeat(heartbeat(0, 0, 3), None)  # below its slots: one more, whatever size
    await eventually(lambda: len(stub.calls) >= 3)
    assert stub.calls == [[0, 1], [2], [3]] and worker.assigned == 7
    stub.release()
    for one in done:
        assert len((await one).samples) == 4
    await turns()
    assert worker.assigned == worker.requests == 0 and lost == []
    await dispatcher.close()
    await fleet.close()


async def test_a_group_that_is_larger_than_twice_the_slots_need_not_wait_for_an_idle_worker() -> (
    None
):
    fleet, dispatcher, _ = make()
    stub = await join(fleet, "a", answer, slots=4)
    worker = fleet.workers["a"]
    worker.assigned = 3
    await dispatcher.submit(request(0, samples=9))
    assert stub.calls == [[0]] and worker.assigned == 3
    await dispatcher.close()
    await fleet.close()


def test_a_negative_number_of_unfinished_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 unfinished samples"):
        unfinished_of(heartbeat(3, -1).progress)
