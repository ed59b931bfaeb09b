"""Who is asked what, and what becomes of groups whose worker fails; the workers are scripts."""

import asyncio
import dataclasses
import random

import grpc
import numpy as np
import pytest
from dispatching import GONE, STOP, answer, failing, generated, join, make, reply_to, request
from waiting import turns

from rlax_plugin.base.errors import DeadlineError, WorkerError
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.rollout.fleet.dispatch import MAX_ATTEMPTS, MAX_FAILURES
from rlax_plugin.rollout.fleet.replies import check_reply
from rlax_plugin.rpc.transport.wire import request_from_proto


async def test_groups_wait_for_a_worker_and_travel_together():
    fleet, dispatcher, _ = make()
    tickets = [dispatcher.submit(request(i)) for i in range(4)]
    stub = await join(fleet, "a", answer)
    for i, ticket in enumerate(tickets):
        asked, samples, workers = await ticket
        assert asked.key.group == i and [s.workers for s in samples] == [("a",), ("a",)]
        assert workers == (fleet.workers["a"],)
    assert stub.calls == [[0, 1, 2, 3]]  # twice its four slots
    assert fleet.workers["a"].assigned == fleet.workers["a"].requests == 0
    await dispatcher.close()


async def test_every_group_is_answered_once_whatever_workers_are_lost():
    """They are lost before or in the midst of an answer, and others go on from what they told."""
    chance = random.Random(0)

    def fickle(message):
        begun = [len(one.tokens) for one in request_from_proto(message).resume]
        if chance.random() < 0.2:
            told = (n + chance.randrange(4) for n in begun or [0] * len(message.seeds))
            yield reply_to(message, *told)
        if chance.random() < 0.1:
            GONE(message)
        yield answer(message)

    fleet, dispatcher, lost = make(refresh=lambda one: one)
    limit = SamplingParams(max_new_tokens=10_000, stop_ids=(STOP,))
    asked = [request(group, samples=1 + group % 5, sampling=limit) for group in range(60)]
    tickets = [dispatcher.submit(one) for one in asked]
    for number in range(100):
        await join(fleet, f"w{number}", fickle, slots=1 + number % 4)
        await turns()
    found = await asyncio.gather(*tickets)
    assert [[s.seed for s in one.samples] for one in found] == [list(r.seeds) for r in asked]
    assert all(s.finish == "stop" for one in found for s in one.samples)
    assert dispatcher.reissued >= len(lost) > 5
    assert all(w.assigned == w.requests == 0 for w in fleet.workers.values())
    await dispatcher.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN])
async def test_a_group_that_workers_fail_at_is_not_tried_for_ever(code):
    fleet, dispatcher, _ = make()
    stubs = [await join(fleet, f"w{i}", failing(code)) for i in range(5)]
    with pytest.raises(WorkerError, match=rf"group 7 failed 3 times.*{code.name}: told 7"):
        await dispatcher.submit(request(7))
    assert sum(len(stub.calls) for stub in stubs) == MAX_FAILURES
    await dispatcher.close()


async def test_a_request_that_is_wrong_is_not_tried_again():
    fleet, dispatcher, lost = make()
    stub = await join(fleet, "a", failing(grpc.StatusCode.INVALID_ARGUMENT))
    with pytest.raises(WorkerError, match="a rejected a call: INVALID_ARGUMENT: told 3"):
        await dispatcher.submit(request(3))
    assert stub.calls == [[3]] and lost == []
    await dispatcher.close()


async def test_a_worker_that_rejects_what_another_one_takes_ends_nothing():
    fleet, dispatcher, lost = make()
    bad = await join(fleet, "bad", failing(grpc.StatusCode.INVALID_ARGUMENT))
    await join(fleet, "good", answer)
    tickets = [dispatcher.submit(request(group)) for group in range(6)]
    found = await asyncio.gather(*tickets)
    assert {samples[0].workers for _, samples, _ in found} == {("good",)}
    assert bad.calls and lost == []
    await dispatcher.close()


async def test_what_two_workers_reject_is_wrong():
    fleet, dispatcher, _ = make()
    stubs = [
        await join(fleet, f"w{i}", failing(grpc.StatusCode.INVALID_ARGUMENT)) for i in range(3)
    ]
    with pytest.raises(WorkerError, match=r"w\d rejected a call: INVALID_ARGUMENT: told 3"):
        await dispatcher.submit(request(3))
    assert sum(len(stub.calls) for stub in stubs) == 2
    await dispatcher.close()


async def test_an_error_that_nobody_foresaw_reaches_whoever_waits():
    fleet, dispatcher, _ = make()
    await join(fleet, "a", lambda message: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await dispatcher.submit(request(0))
    await dispatcher.close()


async def test_without_any_worker_groups_fail_by_name_of_the_deadline():
    _, dispatcher, _ = make(startup_s=0.05)
    tickets = [dispatcher.submit(request(i)) for i in range(3)]
    for ticket in tickets:
        with pytest.raises(DeadlineError, match=r"3 groups wait.*rlax.deadlines.startup_s"):
            await ticket
    await dispatcher.close()


async def test_workers_that_hold_the_version_are_asked_first():
    fleet, dispatcher, _ = make()
    old = await join(fleet, "old", answer, slots=64)
    await join(fleet, "new", answer, version=5)
    fleet.workers["new"].assigned = 2
    found = await dispatcher.submit(dataclasses.replace(request(0), min_version=5))
    assert found.workers == (fleet.workers["new"],) and old.calls == []
    await dispatcher.close()


async def test_attempts_of_earlier_trainer_processes_do_not_count():
    fleet, dispatcher, _ = make()
    await join(fleet, "bad", GONE)
    ticket = dispatcher.submit(dataclasses.replace(request(0), attempt=MAX_ATTEMPTS + 5))
    await turns()
    await join(fleet, "good", answer)
    assert (await ticket).request.attempt == MAX_ATTEMPTS + 6
    await dispatcher.close()


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
        ({"resume": (3, 2), "finish": "length"}, "sample 0 does not continue"),
    ],
)
def test_answers_are_held_against_what_was_asked(changes, message):
    """Of two samples of 4 and 5 tokens, generated with version 5."""
    asked = dataclasses.replace(
        request(0),
        min_version=changes.get("min_version", 0),
        sampling=SamplingParams(max_new_tokens=changes.get("most", 16), stop_ids=(STOP,)),
    )
    if lengths := changes.get("resume"):
        resume = tuple(generated((0, 1), *lengths, changes.get("finish")))
        asked = dataclasses.replace(asked, resume=resume)
    samples = generated((0, 1), 4, 5, "stop")
    if "tokens" in changes:
        tokens = np.array([*[changes["tokens"]] * 3, STOP], np.int32)
        samples[0] = dataclasses.replace(samples[0], tokens=tokens)
    if message is None:
        check_reply(samples, asked, changes.get("newest", 9), worker="b")
    else:
        with pytest.raises(WorkerError, match=f"b: group 0 {message}"):
            check_reply(samples, asked, changes.get("newest", 9), worker="b")
