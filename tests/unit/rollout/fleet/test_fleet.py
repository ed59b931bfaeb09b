"""Who is a worker of a run: silence, pauses, and processes that come back or share a name."""

import asyncio
import math

import pytest
from dispatching import HeldClock, answer, declared, join, make, quarantine, registration
from waiting import eventually

from rlax_plugin.rollout.fleet.fleet import FleetListener
from rlax_plugin.rpc import rlax_pb2 as pb


async def test_a_silent_worker_is_lost():
    fleet, _, lost = make(heartbeats_lost=1)
    await join(fleet, "a", answer)
    watch = asyncio.ensure_future(fleet.watch())
    await eventually(lambda: lost)
    assert lost == ["a: no heartbeat for 0.02 s"] and fleet.workers == {}
    watch.cancel()
    await fleet.close()


async def test_a_pause_of_the_controller_itself_loses_nobody():
    clock = HeldClock()

    fleet, _, lost = make(clock=clock, heartbeats_lost=10)  # 0.2 s in all
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


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config_hash": "xyz"}, "another config"),
        ({"capabilities": declared(0)}, "0 slots"),
        ({"process": ""}, "its process must be"),
        ({"process": "a\nb"}, "its process must be"),
        ({"address": ""}, "must be host:port"),
        ({"address": "dns:///localhost:80"}, "must be host:port"),
        ({"address": "0.0.0.0:80"}, "give --advertised-host"),
        ({"address": "x" * 300 + ":80"}, "must be host:port"),
        ({"address": "localhost:0"}, "must be host:port"),
        ({"address": "localhost:80\n"}, "must be host:port"),
    ],
)
async def test_workers_that_do_not_belong_here_are_rejected(changes, reason):
    fleet, _, _ = make()
    reply = await fleet.Register(registration(**changes), None)
    assert not reply.accepted and reason in reply.reason and fleet.workers == {}


async def test_a_worker_that_was_forgotten_may_come_back_with_its_weights():
    fleet, _, _ = make()
    await join(fleet, "a", answer)
    fleet.lose(fleet.workers["a"], "a hiccup")
    reply = await fleet.Heartbeat(pb.HeartbeatRequest(worker="a", version=3, process="p"), None)
    assert not reply.known
    again = await fleet.Register(registration(version=3), None)
    assert again.accepted and fleet.workers["a"].ready
    await fleet.close()


async def test_weights_that_this_trainer_process_did_not_publish_count_for_nothing():
    (one, *_), (two, *_) = make(), make()
    again = registration(version=7)
    reply = await one.Register(again, None)
    assert reply.accepted and reply.incarnation == one.incarnation != two.incarnation
    assert one.workers["a"].version == -1 and not one.workers["a"].ready
    # The same process again, and another of its name.
    assert (await one.Register(again, None)).accepted and one.workers["a"].version == 7
    one.lose(one.workers["a"], "killed")
    again.process = "p12"
    assert (await one.Register(again, None)).accepted and one.workers["a"].version == -1
    await one.close()


async def test_a_garbled_heartbeat_is_none():
    fleet, _, lost = make()
    await join(fleet, "a", answer)
    heard = fleet.workers["a"].last_seen
    for purpose in (3, -1, -9):
        told = pb.Progress(attempt=1, key=pb.Key(purpose=purpose))
        beat = pb.HeartbeatRequest(worker="a", version=7, process="p", progress=[told])
        with pytest.raises(ValueError, match=f"purpose {purpose} does not exist"):
            await fleet.Heartbeat(beat, None)
    worker = fleet.workers["a"]
    assert (worker.last_seen, worker.version) == (heard, 0) and lost == []
    await fleet.close()


async def test_messages_of_another_process_of_that_name_are_ignored():
    fleet, _, lost = make()
    await join(fleet, "a", answer, process="new")
    stray = pb.HeartbeatRequest(worker="a", version=3, process="old")
    assert not (await fleet.Heartbeat(stray, None)).known
    await fleet.Deregister(pb.DeregisterRequest(worker="a", process="old"), None)
    assert fleet.workers["a"].version == 0 and lost == []
    await fleet.Deregister(pb.DeregisterRequest(worker="a", process="new"), None)
    assert fleet.workers == {} and lost == ["a: left"]
    await fleet.close()


class Quarantines(FleetListener):
    def __init__(self, names: list[str]):
        self._names = names

    def worker_quarantined(self, name: str, reason: str) -> None:
        self._names.append(name)


async def test_a_quarantine_is_of_the_process_that_said_it():
    fleet, _, lost = make()
    told: list[str] = []
    fleet.listeners.append(Quarantines(told))
    await join(fleet, "a", answer, process="old")
    old = fleet.workers["a"]
    fleet.lose(old, "killed")
    await join(fleet, "a", answer, process="new")
    for _ in range(2):  # it is told until it is heard
        await quarantine(fleet, "a", "old")
    assert not old.trusted and fleet.workers["a"].trusted and told == ["a"]
    assert lost == ["a: killed"]
    reply = await fleet.Register(registration(process="old"), None)
    assert not reply.accepted and reply.reason == "quarantined: a canary died"
    assert fleet.workers["a"].process == "new"
    await fleet.close()


async def test_a_quarantine_of_a_process_that_never_registered_is_not_believed():
    fleet, _, _ = make()
    told: list[str] = []
    fleet.listeners.append(Quarantines(told))
    await join(fleet, "a", answer, process="p")
    await quarantine(fleet, "a", "another")
    await quarantine(fleet, "b", "p")
    assert told == [] and fleet.identities.quarantined == {} and fleet.workers["a"].trusted
    await fleet.close()


async def test_figures_are_finite_and_have_short_names():
    fleet, _, _ = make()
    await join(fleet, "a", answer, process="p")
    odd = {"nan": math.nan, "inf": math.inf, "a\nb": 1.0, "": 1.0, "x" * 65: 1.0}
    told = {"tokens": 3.0} | odd
    told |= {f"figure{number}": 1.0 for number in range(300)}
    beat = pb.HeartbeatRequest(worker="a", process="p", version=0, figures=told)
    await fleet.Heartbeat(beat, None)
    figures = fleet.workers["a"].figures
    assert len(figures) == 200 and not figures.keys() & odd.keys()
    await fleet.close()


async def test_a_pause_of_the_controller_gives_no_name_away():
    """What the holder sent meanwhile may be read behind another one's registration."""

    fleet, _, lost = make()
    await join(fleet, "a", answer, process="holder")
    fleet.workers["a"].last_seen -= 1000
    reply = await fleet.Register(registration(process="another"), None)
    assert reply.name_taken and not reply.accepted
    assert fleet.workers["a"].process == "holder" and lost == []
    await fleet.close()
