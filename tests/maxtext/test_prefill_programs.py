"""Everything is compiled before the first request: no prompt, sample or version compiles later."""

import asyncio
import dataclasses

import numpy as np
import pytest
from compiling import compilations
from memory_store import Memory, loaded, prompt_of
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from tiny_engine import NEW, TINY

from maxtext_overrides.worker_slots import make_slots
from rlax_plugin.base.types import Key, Request, SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import resolve
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.rollout.batching.decode_engine import Prefill
from rlax_plugin.weights.verification import take_version

SLOTS, PROMPT, GROUP = 6, 20, 2  # no powers of two: samples are read 1, 2, 4 or 6 at once
LONGEST = PROMPT + NEW - 1
DEADLINE_S = 120
TRUNCATED = {"top_k": 5, "top_p": 0.9}


def section(**rollouts):
    limits = {"slots": SLOTS, "max_prompt_tokens": PROMPT, "max_new_tokens": NEW}
    return RlaxSection.model_validate(
        {
            "prompt_source": {"name": "x"},
            "rewards": [{"name": "x"}],
            "rollouts": limits | {"group_size": GROUP, "on_new_weights": "continue"} | rollouts,
        }
    )


def slots_of(settings):
    config = resolve(TINY, ["scan_layers=true"])  # whose weights are laid out, with each version
    context = BuildContext(run_dir=None, seed=0, section=settings, config=config)
    return make_slots(JetstreamConfig(), context)


def go_through_every_size(slots, weights):
    """Prompts of every length and in any number, samples that go on, reads and canaries."""
    rng = np.random.default_rng(0)
    for length in range(1, LONGEST + 1):
        samples = int(rng.integers(1, SLOTS + 1))
        some = TRUNCATED if length % 3 == 0 else {}
        sampling = SamplingParams(max_new_tokens=NEW, **some)
        going_on = int(rng.integers(0, min(length, NEW)))
        first, *rest = range(samples)
        requests = [Prefill(prompt_of(length), (first,), (1,), sampling, going_on)]
        if rest:
            several = SamplingParams(float(length % 2), max_new_tokens=2)
            requests.append(Prefill(prompt_of(LONGEST - length + 1), rest, rest, several))
        slots.insert(weights, requests)
        slots.decode(weights, 1, False)
        occupied = [slot for slot in range(SLOTS) if slot not in slots.free_slots]
        assert len(slots.read(occupied)) == len(occupied)
        slots.release(occupied)
    everybody = [Prefill(prompt_of(i + 1), (i,), (i,), sampling) for i in range(SLOTS)]
    slots.insert(weights, everybody)
    for count in range(1, SLOTS + 1):
        assert len(slots.read(list(range(count)))) == count
    for length in range(2, 18):  # a canary has at most 16 tokens
        slots.logprobs(weights, prompt_of(length))


def test_an_engine_compiles_nothing_once_a_worker_may_register():
    settings = section(**TRUNCATED)
    store, made = Memory(), []
    engine = JetstreamEngine(
        make_slots=lambda: made.append(slots_of(settings)) or made[0],
        store=store,
        rollouts=settings.rollouts,
        config=JetstreamConfig(interrupt_steps=2),
        make_prompt_source=lambda: pytest.fail("there is no text"),
    )

    async def generated(requests):
        groups = {}
        await engine.generate(requests, lambda key, samples: groups.update({key: samples}))
        return groups

    def group(number, length, samples, resume=(), **sampling):
        params = SamplingParams(max_new_tokens=NEW, **sampling)
        seeds = tuple(range(samples))
        return Request(Key("train", number), 1, prompt_of(length), seeds, params, 0, resume)

    async def scenario():
        with compilations() as before:
            await engine.prepare()
        # For prompts 16 and 20 tokens long, and 31 with a sample's own; and for the canary.
        parts = ("insert_step", "score_prefixes", "decode_loop")
        assert [sum(part in name for name in before) for part in parts] == [3, 1, 1]
        (slots,) = made
        versions = [store.add(loaded(slots, seed), slots) for seed in range(5)]
        with compilations() as after:
            await take_version(engine, versions[0])
            (first,) = (await generated([group(0, 7, 3)])).values()
            for newer, length in zip(versions[1:], (1, 13, 17, PROMPT), strict=True):
                running = asyncio.ensure_future(
                    generated([group(1, length, GROUP), group(2, PROMPT + 1 - length, SLOTS + 3)])
                )
                await asyncio.sleep(0)
                await take_version(engine, newer)  # they go on, each behind its own tokens
                assert len(await running) == 2
            halves = tuple(
                dataclasses.replace(
                    s,
                    tokens=s.tokens[:length],
                    logprobs=s.logprobs[:length],
                    versions=s.versions[:length],
                    finish=None,
                )
                for length, s in enumerate(first, start=1)
            )
            (again,) = (await generated([group(0, 7, 3, halves)])).values()
            assert [len(s.tokens) for s in again] == [NEW] * 3
            await generated([group(5, 9, 1, temperature=0.0), group(6, 19, 4, top_k=3, top_p=0.5)])
        assert after == []
        figures = engine.health()
        assert 0 < figures["prefill_tokens_total"] <= figures["prefill_computed_total"]
        return slots, store.versions[0]

    try:
        slots, weights = asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    finally:
        engine.close()
    slots.lay_out(laid_out := dict(weights))
    with compilations() as after:
        go_through_every_size(slots, laid_out)
    assert after == []
