"""The engine ends samples at stop strings: what was generated beyond is dropped, nothing else."""

import asyncio
import dataclasses
import queue
from types import SimpleNamespace

import numpy as np
import pytest
from rlax_jetstream.driver import JetStreamDriver
from scripted_slots import (
    DEADLINE_S,
    ScriptedSlots,
    generated,
    make_engine,
    play,
    request,
    tokens_of,
    under_way,
    version,
)
from waiting import eventually

from rlax_plugin.rollout.batching.jobs import Job
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.testing import make_sampled
from rlax_plugin.weights.verification import take_version


def decode(tokens):
    return "|".join(map(str, tokens))


def asked(group, seeds, new, *strings, **options):
    plain = request(group, seeds, new, **options)
    sampling = dataclasses.replace(plain.sampling, stop_strings=strings)
    return dataclasses.replace(plain, sampling=sampling)


def test_samples_end_at_their_strings_and_others_go_on():
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        assert engine.capabilities.stop_strings
        groups = await generated(
            engine,
            # "104|1" is complete with token 105, "9|2" with 200, which is the last token allowed.
            asked(0, [100, 196], 5, "104|1", "9|2"),
            asked(1, [300], 40, "314"),
            asked(2, [400], 20, "1000", stop_ids=(407,)),
        )
        first, second = groups[0]
        assert (first.finish, second.finish) == ("length", "stop")
        np.testing.assert_array_equal(second.tokens, [196, 197, 198, 199, 200])
        (long,), (by_id,) = groups[1], groups[2]
        assert long.finish == by_id.finish == "stop"
        np.testing.assert_array_equal(long.tokens, tokens_of(300, 0, 15))
        np.testing.assert_array_equal(long.logprobs, -tokens_of(300, 0, 15).astype(np.float32))
        np.testing.assert_array_equal(long.versions, [3] * 15)
        assert by_id.tokens[-1] == 407

    play(scenario)


@pytest.mark.parametrize("steps", [1, 8])
def test_the_end_does_not_depend_on_how_often_it_is_looked_for(steps):
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        groups = await generated(engine, *(asked(i, [100 * i, 7 + i], 40, "12") for i in range(4)))
        for i, group in groups.items():
            for sample, seed in zip(group, (100 * i, 7 + i), strict=True):
                texts = (decode(range(seed, seed + n)) for n in range(1, 41))
                expected = next((n for n, text in enumerate(texts, 1) if "12" in text), 40)
                assert len(sample.tokens) == expected
        longest = [entry[1] for entry in slots.log if entry[0] == "decode"]
        assert max(longest) <= max(steps, 4)

    play(scenario, stop_string_steps=steps)


def test_a_resumed_sample_ends_at_a_string_that_another_worker_has_begun():
    async def scenario(engine, slots):
        await take_version(engine, version(3))
        tokens = tokens_of(100, 0, 3)
        begun = make_sampled(
            seed=100, tokens=tokens, logprobs=-tokens.astype(np.float32), finish=None
        )
        groups = await generated(engine, asked(0, [100], 40, "2|103|1", resume=[begun]))
        (sample,) = groups[0]
        assert sample.tokens.tolist() == [100, 101, 102, 103, 104] and sample.finish == "stop"

    play(scenario, rollouts={"on_new_weights": "continue"})


def test_new_weights_in_between_change_nothing_of_where_a_sample_ends():
    async def scenario(engine, slots):
        going = await under_way(engine, slots, version(3), asked(0, [100], 40, "119|1"))
        swap = asyncio.ensure_future(take_version(engine, version(4)))
        await eventually(lambda: engine.paused)
        slots.gate.set()
        await swap
        ((sample,),) = (await going).values()
        np.testing.assert_array_equal(sample.tokens, tokens_of(100, 0, 21))
        assert sample.finish == "stop" and set(sample.versions.tolist()) == {3, 4}

    play(scenario, rollouts={"on_new_weights": "continue"})


def test_without_stop_strings_nothing_is_read_and_calls_are_as_long_as_ever():
    def calls(*strings):
        slots = ScriptedSlots()
        scheduler = Scheduler(slots, arrival_steps=4, linger_steps=0, decode=decode)
        job = Job(asked(0, [100, 200, 300, 400], 30, *strings), lambda samples: None, print)
        slots.insert({"w": np.zeros(2)}, scheduler.plan([job], 0))
        while scheduler.active:
            scheduler.advance({}, False)
        return [entry for entry in slots.log if entry[0] != "insert"]

    assert calls() == [("decode", 50, True)]
    assert calls("410") == [("decode", 8, True), ("read", 4), ("decode", 8, True), ("read", 4)] + [
        ("decode", 4, True),
        ("read", 3),
    ] * 3 + [("decode", 4, True)]


def test_jetstreams_own_requests_end_at_the_sources_stop_strings():
    engine = make_engine(ScriptedSlots())
    try:
        engine.prompt_source().stop_strings = ("02|1",)
        asks = SimpleNamespace(prefill_content=[1, 2], max_tokens=9)
        asks.return_channel = SimpleNamespace(cancelled=lambda: False)
        jobs: queue.Queue[list[Job]] = queue.Queue()
        engine.submit = jobs.put
        JetStreamDriver(engine).place_request_on_prefill_queue(asks)
        (job,) = jobs.get(timeout=DEADLINE_S)
        assert job.request.sampling.stop_strings == ("02|1",)
        assert job.request.sampling.stop_ids == (103,)
    finally:
        engine.close()
