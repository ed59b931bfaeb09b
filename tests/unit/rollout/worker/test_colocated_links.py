"""A worker in the controller's process: the dispatcher calls its service as an object."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import dispatching
import numpy as np
import pytest
from dispatching import declared, exactly, make, registration, request
from part_stubs import EngineStub
from sections import section_with
from waiting import eventually

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request, Sampled
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.rollout.fleet.tickets import GivenUp
from rlax_plugin.rollout.worker.colocated import ColocatedLink
from rlax_plugin.rollout.worker.rollout_service import RolloutService
from rlax_plugin.rpc import rlax_pb2 as pb

SECTION = section_with(rollouts={"max_prompt_tokens": 4, "max_new_tokens": 256, "slots": 4})


class Engine(EngineStub):
    """Answers when it is told to."""

    version = 5
    capabilities = Capabilities(slots=4, vocabulary=100, seeded=True, logprobs=True, resumes=True)

    def __init__(self):
        self.asked: list[Request] = []
        self.told: list[Callable[[Key, Sequence[Sampled]], None]] = []
        self.ended = asyncio.Event()
        self.cancelled, self.failure = 0, None

    async def generate(self, requests, on_reply):
        self.asked += requests
        self.told.append(on_reply)
        try:
            await self.ended.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure

    def give_up(self, unwanted, oldest):
        return {(r.key, r.attempt): (2, 1) for r in self.asked if (r.key, r.attempt) in unwanted}


async def joined(**settings: Any) -> tuple[Any, Any, list[str], Engine, RolloutService]:
    fleet, dispatcher, lost = make(**settings)
    engine = Engine()
    service = RolloutService(engine, SECTION)
    fleet.here["p"] = lambda: ColocatedLink(service, engine, SECTION, Devices())
    await register(fleet)
    return fleet, dispatcher, lost, engine, service


async def register(fleet: Any) -> None:
    able = registration("here", capabilities=declared(vocabulary=100))
    assert (await fleet.Register(able, None)).accepted
    await fleet.Heartbeat(pb.HeartbeatRequest(worker="here", version=5, process="p"), None)


async def test_reports_and_the_answer_are_the_engine_s_own_arrays_with_the_worker_s_name():
    _, dispatcher, _, engine, _ = await joined()
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: engine.told)
    (asked,) = engine.asked
    engine.told[0](asked.key, dispatching.generated(asked.seeds, 1, 2, None))
    whole = dispatching.generated(asked.seeds, 3, 4, "stop")
    engine.told[0](asked.key, whole)
    engine.ended.set()
    completed = await ticket
    assert [s.tokens.tolist() for s in completed.samples] == [[0, 1, 99], [0, 1, 2, 99]]
    assert [s.workers for s in completed.samples] == [("here",), ("here",)]
    assert np.shares_memory(completed.samples[1].logprobs, whole[1].logprobs)
    await dispatcher.close()


async def test_an_answer_is_checked_as_that_of_any_worker():
    _, dispatcher, lost, engine, _ = await joined()
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: engine.told)
    beyond = dispatching.generated(engine.asked[0].seeds, 3, 3, "stop")
    beyond[1].tokens[0] = 100
    engine.told[0](engine.asked[0].key, beyond)
    await eventually(lambda: lost and engine.cancelled == 1)
    assert "token" in lost[0] and "100" in lost[0]
    assert not ticket.done()
    await dispatcher.close()


@pytest.mark.parametrize("wrong", ["one is missing", "another seed", "not asked for"])
async def test_an_answer_has_the_samples_that_were_asked_for(wrong):
    _, dispatcher, lost, engine, _ = await joined()
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: engine.told)
    key, seeds = engine.asked[0].key, engine.asked[0].seeds
    if wrong == "one is missing":
        engine.told[0](key, dispatching.generated(seeds[:1], 1, "stop"))
    elif wrong == "another seed":
        engine.told[0](key, dispatching.generated([seeds[0], 77], 1, 1, "stop"))
    else:
        engine.told[0](Key("train", 99), dispatching.generated(seeds, 1, 1, "stop"))
    await eventually(lambda: lost)
    assert "samples that were not requested" in lost[0] and not ticket.done()
    await dispatcher.close()


async def test_a_lost_worker_s_requests_go_to_its_next_registration_and_the_old_call_ends():
    fleet, dispatcher, lost, engine, _ = await joined()
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: engine.told)
    fleet.lose(fleet.workers["here"], "no heartbeat")
    await eventually(lambda: engine.cancelled == 1)
    assert lost == ["here: no heartbeat"] and not ticket.done()
    await register(fleet)
    await eventually(lambda: len(engine.told) == 2)
    again = engine.asked[1]
    assert (again.key, again.attempt) == (Key("train", 0), 2)
    engine.told[1](again.key, dispatching.generated(again.seeds, 1, 1, "stop"))
    engine.ended.set()
    assert (await ticket).request.attempt == 2
    await dispatcher.close()


async def test_what_was_cancelled_or_is_too_old_is_given_up_without_samples():
    _, dispatcher, _, engine, service = await joined()
    one, other = dispatcher.submit(request(0)), dispatcher.submit(request(1))
    await eventually(lambda: len(engine.asked) == 2)
    other.cancel()
    await eventually(
        lambda: Key("train", 1) not in [k for c in service._calls for k in c.unanswered]
    )
    engine.give_up = lambda unwanted, oldest: {(engine.asked[0].key, 1): (2, 1)}
    dispatcher.give_up_older(7)
    with pytest.raises(GivenUp) as given_up:
        await one
    assert given_up.value.tokens == (2, 1)
    await dispatcher.close()


async def test_a_request_that_no_engine_can_take_fails_and_the_worker_stays():
    fleet, dispatcher, lost, *_ = await joined()
    ticket = dispatcher.submit(exactly(5))
    wrong = dispatcher.submit(request(1, context=np.arange(1, 6, dtype=np.int32)))
    with pytest.raises(WorkerError, match="here rejected a call: group 1: 5 prompt tokens"):
        await wrong
    assert not lost and "here" in fleet.workers
    ticket.cancel()
    await dispatcher.close()


async def test_the_engine_s_failure_loses_the_worker_with_its_words():
    _, dispatcher, lost, engine, _ = await joined()
    ticket = dispatcher.submit(request(0))
    await eventually(lambda: engine.told)
    engine.failure = WorkerError("rollout engine: out of memory")
    engine.ended.set()
    await eventually(lambda: lost)
    assert lost == ["here: rollout engine: out of memory"] and not ticket.done()
    await dispatcher.close()
