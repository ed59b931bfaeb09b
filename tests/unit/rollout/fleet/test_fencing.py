"""A worker that was started again: the later start gets the name, the earlier one is fenced."""

import pytest
from dispatching import Stub, answer, declared, join, make, quarantine, registration, request
from waiting import turns

from rlax_plugin.rollout.fleet import fencing
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rpc import rlax_pb2 as pb


async def register(fleet: Fleet, process: str, incarnation: int) -> pb.RegisterReply:
    return await fleet.Register(registration(process=process, incarnation=incarnation), None)


async def beat(fleet: Fleet, process: str) -> pb.HeartbeatReply:
    return await fleet.Heartbeat(pb.HeartbeatRequest(worker="a", process=process), None)


async def test_a_later_start_gets_the_name_at_once_and_the_earlier_one_is_told_to_end():
    fleet, _, lost = make()
    assert (await register(fleet, "old", 7)).accepted
    assert (await register(fleet, "new", 8)).accepted
    assert lost == ["a: was started again"] and fleet.workers["a"].process == "new"
    reply = await beat(fleet, "old")
    assert not reply.known and reply.fenced == (
        "worker a was started again since: this process has incarnation 7, the run has 8; "
        "nothing of this process is used any more"
    )
    again = await register(fleet, "old", 7)
    assert (again.accepted, again.name_taken) == (False, False)
    assert again.reason == reply.fenced
    await fleet.Deregister(pb.DeregisterRequest(worker="a", process="old"), None)
    kept = await beat(fleet, "new")
    assert kept.known and kept.fenced == "" and fleet.workers["a"].process == "new"
    await fleet.close()


async def test_an_earlier_start_is_fenced_also_while_the_name_is_free():
    fleet, _, _ = make()
    assert (await register(fleet, "old", 7)).accepted
    assert (await register(fleet, "new", 8)).accepted
    fleet.lose(fleet.workers["a"], "killed")
    assert "incarnation 7" in (await register(fleet, "old", 7)).reason
    assert "incarnation 0" in (await register(fleet, "older", 0)).reason
    # The same process, or one whose launcher gave the same number.
    assert (await register(fleet, "new", 8)).accepted
    assert (await register(fleet, "another", 8)).name_taken
    await fleet.close()


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 3), (3, 2), (3, 0)])
async def test_a_start_that_is_not_later_replaces_nobody(first, second):
    fleet, _, lost = make()
    assert (await register(fleet, "one", first)).accepted
    assert not (await register(fleet, "two", second)).accepted
    assert lost == [] and fleet.workers["a"].process == "one"
    await fleet.close()


async def test_a_start_that_cannot_do_the_work_replaces_nobody():
    fleet, _, lost = make()
    assert (await register(fleet, "one", 1)).accepted
    unfit = registration(capabilities=declared(0), process="two", incarnation=2)
    assert (await fleet.Register(unfit, None)).unfit
    assert lost == [] and (await beat(fleet, "one")).known
    await fleet.close()


async def test_late_answers_of_a_fenced_process_are_not_used():
    fleet, dispatcher, _ = make()
    old = await join(fleet, "a", answer, process="old", held=True)
    ticket = dispatcher.submit(request(0))
    await turns()
    assert old.calls == [[0]]
    assert (await register(fleet, "new", 1)).accepted
    new = fleet.workers["a"].link.stub = Stub(answer)
    old.release()  # its answer is read after the later start has registered
    await turns()
    assert not ticket.done()
    beating = pb.HeartbeatRequest(worker="a", process="new", version=5)
    await fleet.Heartbeat(beating, None)
    asked, _, workers = await ticket
    assert asked.attempt == 2 and [w.process for w in workers] == ["new"]
    assert new.calls == [[0]]
    await dispatcher.close()


async def test_what_a_fenced_process_says_of_its_own_weights_still_counts():
    """It voids samples that it gave before, and gives none."""

    fleet, _, _ = make()
    assert (await register(fleet, "old", 1)).accepted
    old = fleet.workers["a"]
    assert (await register(fleet, "new", 2)).accepted
    await quarantine(fleet, "a", "old")
    assert not old.trusted and fleet.workers["a"].process == "new"
    assert fleet.workers["a"].trusted
    await fleet.close()


def test_names_are_forgotten_oldest_first(monkeypatch):
    monkeypatch.setattr(fencing, "_MOST_NAMES", 2)
    fence = fencing.Fence()
    for name in ("a", "b", "a", "c"):
        fence.note(name, 5)
    fence.note("unnumbered", 0)
    assert [fence.rejection(name, 4) != "" for name in "abc"] == [True, False, True]
