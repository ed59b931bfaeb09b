"""Which requests workers are asked to give up, and what becomes of them; workers are scripts."""

import asyncio
from typing import Any

import numpy as np
import pytest
from dispatching import GONE, answer, join, make, request
from mixed_fleets import holding
from sections import section_with
from waiting import turns

from rlax_plugin.base.types import Key
from rlax_plugin.rollout.fleet.tickets import GivenUp
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.wire import key_from_proto, reply_to_proto
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.testing import make_sampled


async def test_requests_that_are_cancelled_are_given_up_in_one_message():
    fleet, dispatcher, lost = make()
    held = await holding(fleet, version=0)
    tickets = [dispatcher.submit(request(i)) for i in range(3)]
    await turns()
    worker = fleet.workers["a"]
    assert worker.assigned == 6
    tickets[0].cancel()
    tickets[2].cancel()
    await turns()
    assert held.asked == [([0, 2], 0)]
    dispatcher.give_up_older(0)  # nothing more to ask
    await turns()
    assert worker.assigned == 6  # until it says so, it may still generate them
    held.give_up(0, 3, 1)
    held.give_up(2)
    await turns()
    assert worker.assigned == 2
    held.replies[1].put_nowait(answer(pb.Request(key=pb.Key(group=1), seeds=[0, 1])))
    assert (await tickets[1]).request.key.group == 1
    await turns()
    assert worker.assigned == worker.requests == 0
    assert lost == [] and dispatcher.reissued == 0 and len(held.asked) == 1
    await dispatcher.close()


async def test_a_worker_that_has_left_is_not_asked():
    fleet, dispatcher, lost = make()
    held = await holding(fleet, version=0)
    tickets = [dispatcher.submit(request(i)) for i in range(2)]
    await turns()
    await fleet.Deregister(pb.DeregisterRequest(worker="a", process="p"), None)
    tickets[0].cancel()  # as at the end of training; its channel takes no new calls any more
    await turns()
    dispatcher.give_up_older(1)
    await turns()
    assert fleet.workers == {} and held.asked == [] and lost == ["a: left"]
    await dispatcher.close()


async def test_only_workers_that_may_have_begun_something_too_old_are_asked():
    fleet, dispatcher, lost = make()
    held = await holding(fleet, version=0)
    tickets = [dispatcher.submit(request(i, min_version=v)) for i, v in enumerate((0, 2))]
    await turns()
    other = await holding(fleet, "b", version=0)
    newer = dispatcher.submit(request(2, min_version=2))
    await turns()
    dispatcher.give_up_older(2)
    await turns()
    assert held.asked == [([], 2)] and other.asked == []
    dispatcher.give_up_older(2)
    await turns()
    assert len(held.asked) == 1  # it has heard that
    held.give_up(0, 7, 0)
    with pytest.raises(GivenUp) as caught:
        await tickets[0]
    assert caught.value.tokens == (7, 0)
    dispatcher.give_up_older(2)
    await turns()
    assert len(held.asked) == 1  # nothing of its own is too old any more
    assert not tickets[1].done() and not newer.done() and lost == []
    await dispatcher.close()


async def test_what_waits_for_a_worker_waits_for_newer_weights():
    fleet, dispatcher, _ = make()
    trains = dispatcher.submit(request(0))
    evaluates = dispatcher.submit(request(0, key=Key("evaluate", 0)))
    dispatcher.give_up_older(1)
    stub = await join(fleet, "a", answer)
    await asyncio.gather(trains, evaluates)
    # ``refresh`` of the tests adds one.
    assert [(r.key.purpose, r.min_version) for r in stub.requests] == [(0, 1), (1, 0)]
    await dispatcher.close()


async def left_over(fleet: Any, dispatcher: Any, *versions: int) -> Any:
    """A request that a worker has begun with these versions, and was lost with."""

    def begin(message: pb.Request) -> Any:
        samples = [make_sampled(len(versions), versions=np.array(versions, np.int32), finish=None)]
        yield reply_to_proto(key_from_proto(message.key), samples)
        GONE(message)

    await join(fleet, "lost", begin, version=versions[-1])
    ticket = dispatcher.submit(request(0, samples=1))
    await turns()
    assert dispatcher.reissued == 1 and list(fleet.workers) == []
    return ticket


def bounds(next_step: list[int]) -> Any:
    staleness = Staleness(section_with(staleness={"max_staleness": 3}), groups=4)
    return lambda request: staleness.refreshed(request, next_step[0])


async def test_what_goes_on_from_older_tokens_is_too_old_by_its_oldest_for_both_sides():
    next_step = [6]
    fleet, dispatcher, lost = make(bounds(next_step))
    ticket = await left_over(fleet, dispatcher, 3, 5)
    held = await holding(fleet, version=0)
    await turns()
    next_step[0] = 7
    dispatcher.give_up_older(4)
    await turns()
    assert held.asked == [([], 4)]
    held.give_up(0, 2)
    with pytest.raises(GivenUp):
        await ticket
    assert len(lost) == 1 and lost[0].startswith("lost: ")  # and no distrusted one
    await dispatcher.close()


async def test_what_waits_with_tokens_that_become_too_old_begins_anew():
    next_step = [6]
    fleet, dispatcher, _ = make(bounds(next_step))
    ticket = await left_over(fleet, dispatcher, 3, 5)
    next_step[0] = 7
    dispatcher.give_up_older(4)
    stub = await join(fleet, "a", answer, version=5)
    await ticket
    (asked,) = stub.requests
    assert asked.min_version == 4 and not asked.resume
    await dispatcher.close()


@pytest.mark.parametrize(
    ("oldest", "tokens", "why"),
    [
        (0, (1, 1), "a gave up group 0, which it was not asked to"),
        (1, (1, 1, 1), "a gave up group 0 with [1, 1, 1] tokens"),
        (1, (17, 0), "a gave up group 0 with [17, 0] tokens"),
    ],
)
async def test_a_worker_that_gives_up_what_it_should_not_is_not_trusted(oldest, tokens, why):
    fleet, dispatcher, lost = make()
    held = await holding(fleet, version=0)
    ticket = dispatcher.submit(request(0))
    await turns()
    dispatcher.give_up_older(oldest)
    await turns()
    held.give_up(0, *tokens)
    await turns()
    assert lost == [f"a: {why}"]
    await join(fleet, "b", answer)
    assert (await ticket).request.attempt == 2
    await dispatcher.close()
