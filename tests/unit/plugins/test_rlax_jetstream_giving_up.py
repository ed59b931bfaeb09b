"""Requests that are given up: their slots are free, and too old weights begin nothing."""

import asyncio

import numpy as np
from scripted_slots import ScriptedSlots, play, request, until, version
from test_rlax_jetstream_progress import OneByOne, attempt
from waiting import eventually

from rlax_plugin.weights.verification import take_version


def test_what_is_too_old_ends_and_what_waits_begins_with_newer_weights():
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        slots.gate = OneByOne()
        slots.decoding.clear()
        found = {}
        asked = [
            request(0, [1, 2, 3], new=600),  # runs
            request(1, [4, 5], new=600),  # one of its samples runs, and one waits
            request(2, [6], new=600),  # waits
        ]
        call = asyncio.ensure_future(
            engine.generate(asked, lambda key, samples: found.update({key.group: samples}))
        )
        evaluated = asyncio.ensure_future(
            engine.generate(
                [request(9, [7], new=3, purpose="evaluate")],
                lambda key, samples: found.update({key.group: samples}),
            )
        )
        await until(slots.decoding)
        await eventually(lambda: engine.backlog >= 3)
        await slots.gate.one_call(slots)
        assert engine.give_up((), 1) == {}  # version 1 can train
        # One call was as long as a call may be, because samples wait.
        assert engine.give_up((), 2) == {attempt(0): (256,) * 3, attempt(1): (256, 0)}
        assert engine.give_up((), 2) == {}
        slots.gate.set()
        await evaluated  # it has nothing to do with training
        assert slots.running == {} and not call.done() and found.keys() == {9}
        await take_version(engine, version(2))
        await call
        assert found.keys() == {2, 9}
        assert np.unique(found[2][0].versions).tolist() == [2]
        assert engine.progress() == {} and engine.give_up((), 3) == {}

    play(
        scenario, ScriptedSlots(max_new_tokens=600), rollouts={"max_new_tokens": 600},
    )  # fmt: skip


def test_what_nobody_wants_ends_whatever_its_weights():
    async def scenario(engine, slots):
        await take_version(engine, version(1))
        slots.gate.clear()
        slots.decoding.clear()
        found = []
        asked = [request(0, [1, 2]), request(1, [3], min_version=2), request(2, [4])]
        call = asyncio.ensure_future(
            engine.generate(asked, lambda key, samples: found.append(key.group))
        )
        await until(slots.decoding)
        wanted = {attempt(0), attempt(1), attempt(5), (asked[2].key, 2)}
        assert engine.give_up(wanted, 0) == {attempt(0): (0, 0), attempt(1): (0,)}
        slots.gate.set()
        await call
        assert found == [2] and slots.running == {}

    play(scenario)
