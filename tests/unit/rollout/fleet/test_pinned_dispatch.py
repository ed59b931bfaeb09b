"""A worker that keeps one version: who is appointed, what it is asked, and what it may answer."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from dispatching import answer, exactly, failing, join, make, request
from waiting import eventually, turns

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import SAFETENSORS
from rlax_plugin.rollout.fleet.dispatch import MAX_FAILURES
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rpc import rlax_pb2 as pb

PINNED = 5  # the version that the scripts of dispatching.py generate with


async def beat(fleet: Fleet, name: str, version: int, pin: int | None = None) -> int | None:
    """A heartbeat; the version that the reply tells to keep."""
    reply = await fleet.Heartbeat(
        pb.HeartbeatRequest(worker=name, version=version, process="p", pin=pin), None
    )
    assert reply.known
    return reply.pin if reply.HasField("pin") else None


async def test_each_kind_of_group_goes_to_its_own_workers():
    fleet, dispatcher, lost = make()
    keeper, other = await join(fleet, "a", answer), await join(fleet, "b", answer)
    fleet.pin(PINNED)
    exact = dispatcher.submit(exactly(PINNED))
    await turns()
    assert not exact.done()  # nobody keeps it yet
    assert await beat(fleet, "a", 9) == PINNED and await beat(fleet, "b", 9) is None
    await dispatcher.submit(request(1))
    assert await beat(fleet, "a", PINNED, pin=PINNED) == PINNED
    asked, samples, _ = await exact
    assert asked.min_version == 0 and {s.workers for s in samples} == {("a",)}
    await asyncio.gather(*(dispatcher.submit(request(i)) for i in range(2, 8)))
    assert [i for call in other.calls for i in call] == [1, 2, 3, 4, 5, 6, 7]
    assert keeper.calls == [[0]] and lost == []

    fleet.unpin()
    ticket = dispatcher.submit(request(8))
    await ticket
    assert other.calls[-1] == [8]  # "a" has not heard of it yet
    assert await beat(fleet, "a", 9) is None
    fleet.lose(fleet.workers["b"], "left")
    await dispatcher.submit(request(9))
    assert keeper.calls[-1] == [9]
    await dispatcher.close()


async def test_a_worker_ends_what_it_generates_for_training_before_it_is_told():
    fleet, dispatcher, _ = make()
    stubs = [await join(fleet, name, answer, held=True) for name in ("a", "b")]
    tickets = [dispatcher.submit(request(i)) for i in range(2)]
    await turns()
    fleet.pin(PINNED)
    (kept,) = [w.name for w in fleet.workers.values() if w.keep == PINNED]
    assert await beat(fleet, kept, 9) is None
    for stub in stubs:
        stub.release()
    await asyncio.gather(*tickets)
    assert await beat(fleet, kept, 9) == PINNED
    await dispatcher.close()


async def test_one_worker_alone_trains():
    fleet, dispatcher, lost = make()
    await join(fleet, "a", answer)
    fleet.pin(PINNED)
    assert fleet.lacks_pinned_worker and await beat(fleet, "a", 9) is None
    await join(fleet, "b", answer)
    assert not fleet.lacks_pinned_worker
    (kept,) = [w for w in fleet.workers.values() if w.keep == PINNED]
    (other,) = [w for w in fleet.workers.values() if w.keep != PINNED]
    fleet.lose(other, "killed")
    assert lost[1:] == [f"{kept.name}: training needs it: no other worker is ready"]
    await join(fleet, kept.name, answer)
    assert fleet.lacks_pinned_worker
    await dispatcher.submit(request(0))
    fleet.training = False  # at the end of the run nobody else needs it
    assert await beat(fleet, kept.name, 9) == PINNED
    await dispatcher.close()


async def test_a_lost_keeper_is_replaced_and_its_groups_issued_again():
    fleet, dispatcher, lost = make()
    await join(fleet, "a", failing(grpc.StatusCode.UNAVAILABLE))
    await join(fleet, "b", answer)
    fleet.pin(PINNED)
    exact = dispatcher.submit(exactly(PINNED))
    assert await beat(fleet, "a", PINNED, pin=PINNED) == PINNED
    await eventually(lambda: lost)
    assert lost == ["a: UNAVAILABLE: told 0"] and fleet.lacks_pinned_worker
    await join(fleet, "c", answer)
    (kept,) = [w.name for w in fleet.workers.values() if w.keep == PINNED]
    await beat(fleet, kept, PINNED, pin=PINNED)
    asked, samples, _ = await exact
    # ``Reissuing.refreshed``, which would have raised the version, was not asked.
    assert (asked.attempt, asked.min_version) == (2, 0) and samples[0].workers == (kept,)
    await dispatcher.close()


async def test_a_version_that_no_worker_can_load_is_given_up():
    fleet, dispatcher, _ = make()
    fleet.pin(PINNED)
    exact = [dispatcher.submit(exactly(PINNED, i)) for i in range(2)]
    await join(fleet, "a", answer)
    await join(fleet, "b", answer)
    for _ in range(MAX_FAILURES):
        (keeper,) = [w for w in fleet.workers.values() if w.keep == PINNED]
        assert not exact[0].done()
        fleet.lose(keeper, "left")  # it tried for as long as its deadlines allow
        await join(fleet, keeper.name, answer)
    for ticket in exact:
        with pytest.raises(WorkerError, match=r"keep version 5: 3 .*: left"):
            await ticket
    await dispatcher.submit(request(1))
    await dispatcher.close()


async def test_keepers_that_training_needs_are_not_held_against_the_version():
    fleet, dispatcher, lost = make()
    fleet.pin(PINNED)
    exact = dispatcher.submit(exactly(PINNED))
    for _ in range(2 * MAX_FAILURES):
        await join(fleet, "a", answer)
        await join(fleet, "b", answer)
        (other,) = [w for w in fleet.workers.values() if w.keep < 0]
        fleet.lose(other, "killed")
    assert len([why for why in lost if "training needs it" in why]) == 2 * MAX_FAILURES
    assert not exact.done()
    await dispatcher.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_tokens_of_another_version_are_rejected_if_anybody_waits_for_them(cancelled):
    fleet, dispatcher, lost = make()
    stub = await join(fleet, "a", answer)
    await join(fleet, "b", answer)
    fleet.pin(4)
    await beat(fleet, "a", 4, pin=4)  # and then generates with 5
    exact = dispatcher.submit(exactly(4))
    while not stub.calls:  # turn by turn: the reply comes two turns later
        await asyncio.sleep(0)
    if cancelled:
        exact.cancel()
        await turns()
        assert lost == [] and fleet.workers["a"].assigned == 0
    else:
        await eventually(lambda: lost)
        assert lost[0].startswith(
            "a: a: evaluation group 0 sample 0 was not generated with weight version 4, as"
        )
    await dispatcher.close()
    with pytest.raises(asyncio.CancelledError):  # it was issued again
        await exact


async def test_a_worker_that_reads_converted_versions_keeps_one_only_if_all_do():
    """Of the pinned version there may be no converted part."""
    fleet, dispatcher, _ = make()
    for name in "abc":
        await join(fleet, name, answer)
        if name != "b":
            has = fleet.workers[name].capabilities
            fleet.workers[name].capabilities = replace(has, weights_format=SAFETENSORS)
    fleet.pin(PINNED)
    assert [w.name for w in fleet.workers.values() if w.keep == PINNED] == ["b"]
    fleet.lose(fleet.workers["b"], "killed")
    assert [w.name for w in fleet.workers.values() if w.keep == PINNED] == ["a"]
    await dispatcher.close()
