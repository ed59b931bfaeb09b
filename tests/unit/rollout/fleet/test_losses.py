"""Workers that are lost again and again get no groups for a while; answers make up for losses."""

import re
from typing import Any

import pytest
from dispatching import GONE, HeldClock, Stub, answer, join, make, request
from waiting import eventually

from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet, Losses
from rlax_plugin.rpc import rlax_pb2 as pb


def test_rests_double_up_to_ten_minutes_and_are_forgotten_ten_minutes_later() -> None:
    losses = Losses()
    now_s, rests = 0.0, []
    for _ in range(9):
        rests.append(losses.lost("a", now_s))
        now_s += rests[-1] + 16.0
    assert rests == [0.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    end_s = now_s - 16.0
    assert losses.rest_s("a", end_s - 1.0) == 1.0 and losses.rest_s("a", end_s) == 0.0
    assert losses.lost("a", end_s + 600.0) == 600.0
    assert losses.lost("a", end_s + 1200.0 + 601.0) == 0.0 and losses.count("a") == 1


def test_each_answer_takes_a_loss_off_and_ends_the_rest() -> None:
    losses = Losses()
    for now_s in (0.0, 1.0, 2.0):
        losses.lost("a", now_s)
    assert (losses.count("a"), losses.rest_s("a", 10.0)) == (3, 22.0)
    losses.answered("a", 10.0)
    assert (losses.count("a"), losses.rest_s("a", 10.0)) == (2, 0.0)
    losses.answered("a", 11.0)
    losses.answered("a", 12.0)
    losses.answered("a", 13.0)
    assert losses.count("a") == 0 and losses.lost("a", 14.0) == 0.0


def _deaf(said: list[str], clock: HeldClock) -> tuple[Fleet, Dispatcher, list[str]]:
    return make(refresh=lambda one: one, clock=clock, note=said.append, heartbeats_lost=10**6)


async def _beat(fleet: Fleet, name: str) -> None:
    await fleet.Heartbeat(pb.HeartbeatRequest(worker=name, version=5, process="p"), None)


async def _lost_at_once(fleet: Fleet, dispatcher: Dispatcher, stub: Stub, group: int) -> Any:
    """Submits a group that this worker gets first; returns once it was lost over it."""
    before = len(stub.calls)
    done = dispatcher.submit(request(group))
    await eventually(lambda: len(stub.calls) > before and "deaf" not in fleet.workers)
    return done


async def test_a_worker_that_only_its_heartbeats_reach_gets_no_groups_while_others_take_them() -> (
    None
):
    clock, said = HeldClock(), list[str]()

    fleet, dispatcher, lost = _deaf(said, clock)
    for group in range(2):
        deaf = await join(fleet, "deaf", GONE, version=5)
        waits = await _lost_at_once(fleet, dispatcher, deaf, group)
        await join(fleet, "good", answer, version=5)
        await waits
        fleet.lose(fleet.workers["good"], "left")
    deaf = await join(fleet, "deaf", GONE, version=5)
    good = await join(fleet, "good", answer, version=5)
    for group in range(2, 12):
        await dispatcher.submit(request(group))
    assert deaf.calls == [] and good.calls == [[group] for group in range(2, 12)]
    (line,) = said
    assert re.fullmatch(
        r"worker deaf was lost 2 times, and has answered too little in between: it gets no "
        r"groups until \d\d:\d\d:\d\d while others can take them \(.*told 1.*\)",
        line,
    )
    assert fleet.workers["deaf"].rests and not fleet.workers["good"].rests

    await clock.passes(14.9)
    await _beat(fleet, "deaf")
    assert fleet.workers["deaf"].rests
    await clock.passes(0.2)
    await _beat(fleet, "deaf")
    assert not fleet.workers["deaf"].rests
    await _lost_at_once(fleet, dispatcher, deaf, 12)
    assert len(said) == 2 and "was lost 3 times" in said[1]
    assert [one for one in lost if one.startswith("deaf")] == [
        f"deaf: UNAVAILABLE: told {group}" for group in (0, 1, 12)
    ]
    await dispatcher.close()
    await fleet.close()


async def test_a_worker_that_rests_is_tried_when_others_are_gone_and_an_answer_ends_that() -> None:
    clock, said = HeldClock(), list[str]()

    fleet, dispatcher, _ = _deaf(said, clock)
    for _ in range(2):
        await join(fleet, "a", answer, version=5)
        fleet.fail(fleet.workers["a"], "killed")
    await join(fleet, "a", answer, version=5)
    await join(fleet, "b", GONE, version=5)
    assert fleet.workers["a"].rests and [w.name for w in fleet.serving(None)] == ["b"]
    await dispatcher.submit(request(0))  # b is lost over it
    assert "b" not in fleet.workers and not fleet.workers["a"].rests
    assert fleet.losses.count("a") == 1 and len(said) == 1
    await dispatcher.close()
    await fleet.close()


@pytest.mark.parametrize("training", [True, False])
async def test_an_evaluation_does_not_wait_for_a_worker_that_rests(training: bool) -> None:
    fleet, dispatcher, _ = _deaf([], HeldClock())
    fleet.training = training
    for _ in range(2):
        await join(fleet, "deaf", answer, version=5)
        fleet.fail(fleet.workers["deaf"], "killed")
    await join(fleet, "deaf", answer, version=5)
    await join(fleet, "a", answer, version=5)
    fleet.pin(5)
    assert fleet.workers["deaf"].keep == -1
    assert fleet.workers["a"].keep == (-1 if training else 5)  # alone, it trains
    await join(fleet, "b", answer, version=5)
    kept = [name for name, one in fleet.workers.items() if one.keep == 5]
    assert kept in (["a"], ["b"])
    if training:
        (other,) = {"a", "b"} - set(kept)
        fleet.lose(fleet.workers[other], "left")  # the one that rests does not take its place
        assert kept[0] not in fleet.workers
    await dispatcher.close()
    await fleet.close()
