"""The scheduler gives the next turn of an episode the slot that keeps its context."""

import dataclasses

import numpy as np
from scripted_slots import PROMPT, ScriptedSlots, generated, play, request, version

from rlax_plugin.rollout.batching.jobs import Job
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.weights.verification import take_version


class KeepingSlots(ScriptedSlots):
    """Keep the contexts that a test says, and log when they are forgotten."""

    def __init__(self, kept=()):
        super().__init__()
        self.kept = dict(kept)  # context -> slot

    def kept_for(self, context):
        slot = self.kept.get(tuple(context.tolist()))
        return None if slot in self.running else slot

    def forget_contexts(self):
        self.log.append(("forget",))
        self.kept.clear()


def job(number, seeds, context=(1, 2)):
    asked = dataclasses.replace(request(number, seeds), context=np.array(context, np.int32))
    return Job(asked, lambda samples: None, lambda error: None)


def test_a_turn_gets_the_slot_that_keeps_its_context():
    slots = KeepingSlots({(7, 7): 0, (8, 8): 2})
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=2)
    waiting = [job(0, [10]), job(1, [20], (8, 8)), job(2, [30, 31], (7, 7)), job(3, [40])]
    prefills = scheduler.plan(waiting, 0)
    # Group 2 has two samples, which share a prefill: no slot is kept for it.
    assert [p.slots for p in prefills] == [(0,), (2,), (1, 3)]
    assert waiting[3].waiting == [0]


def test_two_samples_with_the_same_kept_context_get_different_slots():
    slots = KeepingSlots({(7, 7): 3})
    scheduler = Scheduler(slots, arrival_steps=4, linger_steps=2)
    prefills = scheduler.plan([job(0, [10], (7, 7)), job(1, [20], (7, 7))], 0)
    assert [p.slots for p in prefills] == [(3,), (0,)]


def test_contexts_are_forgotten_when_weights_change_and_after_those_that_are_verified():
    async def scenario(engine, slots):
        await take_version(engine, version(0))
        await generated(engine, request(7, [100]))
        slots.log.clear()
        loaded = await engine.load(version(1))
        await engine.decode_greedy(PROMPT, 2, loaded)
        assert [entry[0] for entry in slots.log] == ["forget", "insert", "decode", "forget"]
        slots.log.clear()
        await engine.use(loaded)
        assert slots.log == [("forget",)]

    play(scenario, slots=KeepingSlots())
