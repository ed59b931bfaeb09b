"""Slots that generate tokens without a model, and an engine over them."""

import asyncio
import threading
from dataclasses import dataclass

import numpy as np
from part_stubs import SourceStub
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine

from rlax_plugin.base.types import Key, Request, SamplingParams, TensorSpec
from rlax_plugin.config import Rollouts
from rlax_plugin.rollout.batching.decode_engine import Prefill, SlotOutput
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.verification import take_version

DEADLINE_S = 60.0
PROMPT = np.arange(3, dtype=np.int32)


@dataclass
class _Sample:
    """A sample in a slot: ``first`` tokens were there when it came, ``generated`` are now."""

    seed: int
    first: int
    generated: int
    sampling: SamplingParams

    @property
    def tokens(self):
        return tokens_of(self.seed, self.first, self.generated)

    @property
    def ended(self):
        last = self.seed % 10**6 + self.generated - 1
        return self.generated == self.sampling.max_new_tokens or last in self.sampling.stop_ids


def tokens_of(seed, first, end):
    return (seed % 10**6 + np.arange(first, end)).astype(np.int32)


class ScriptedSlots:
    """Sample with seed s: tokens s, s + 1, ... until ``sampling`` ends it.

    Each step adds one token to every occupied slot. ``log`` keeps the calls; a decode waits for
    ``gate``, so that a test can act while samples run.
    """

    def __init__(self, slots=4, max_prompt_tokens=8, max_new_tokens=50):
        self.slots, self.max_prompt_tokens = slots, max_prompt_tokens
        self.max_new_tokens = max_new_tokens
        self.vocabulary = 10**6 + 1000
        self.rounds_caches = self.converts = False
        self.steps_total = self.slot_steps_total = self.tokens_total = 0
        self.prefill_tokens_total = self.prefill_computed_total = self.prefill_kept_total = 0
        self.log, self.running = [], {}
        self.gate, self.decoding = threading.Event(), threading.Event()
        self.gate.set()
        self.fail_with = None

    @property
    def free_slots(self):
        return [s for s in range(self.slots) if s not in self.running]

    def variables_like(self):
        return {"w": np.zeros(2, np.float32)}

    def lay_out(self, arrays):
        pass

    def convert(self, arrays):
        pass

    def fingerprints(self, arrays, made_by):
        return made_by(arrays)

    def insert(self, weights, requests):
        for r in requests:
            assert isinstance(r, Prefill)
            self.log.append(
                ("insert", self.steps_total, r.slots, int(weights["w"][0]), r.generated)
            )
            for slot, seed in zip(r.slots, r.seeds, strict=True):
                assert slot not in self.running
                if r.generated:
                    behind = np.concatenate([PROMPT, tokens_of(seed, 0, r.generated)])
                    np.testing.assert_array_equal(r.tokens, behind)
                if not r.sampling.temperature:
                    self.greedy_scale = weights["w"][0]
                self.running[slot] = _Sample(seed, r.generated, r.generated + 1, r.sampling)

    def decode(self, weights, max_steps, stop_when_free):
        self.decoding.set()
        assert self.gate.wait(DEADLINE_S)
        if self.fail_with is not None:
            raise self.fail_with
        self.log.append(("decode", max_steps, stop_when_free))
        done = self._ended()
        steps = 0
        while steps < max_steps and len(done) < len(self.running):
            if stop_when_free and done:
                break
            for sample in self.running.values():
                self.slot_steps_total += not sample.ended
                sample.generated += not sample.ended
            steps += 1
            done = self._ended()
        self.steps_total += steps
        ended = [self._generated(slot) for slot in done]
        self.release(done)
        return ended

    def read(self, slots):
        self.log.append(("read", len(slots)))
        return [self._generated(slot) for slot in slots]

    def logprobs(self, weights, tokens):
        if len(tokens) > self.max_prompt_tokens + 1:
            raise ValueError(f"{len(tokens)} tokens")
        return (-weights["w"][0] * _least(tokens[1:])).astype(np.float32)

    def release(self, slots):
        for slot in slots:
            del self.running[slot]

    def warm_up(self):
        self.log.append(("warm_up",))

    def kept_for(self, context):
        return None

    def forget_contexts(self):
        pass

    def inserts(self):
        return [entry[1:] for entry in self.log if entry[0] == "insert"]

    def _ended(self):
        return [slot for slot, sample in self.running.items() if sample.ended]

    def _generated(self, slot):
        sample = self.running[slot]
        tokens = sample.tokens
        full = -_least(tokens).astype(np.float32)  # no log-prob is below -150
        if sample.sampling.temperature == 0:  # as ``logprobs`` has it
            full *= self.greedy_scale
        return SlotOutput(slot, tokens, full, -2 * _least(tokens).astype(np.float32))


def _least(tokens):
    """Tokens, those of the contract made small, as no log-prob is below -150 there."""
    return np.where(tokens < 1000, tokens, tokens % 75)


class Store:
    def __init__(self):
        self.loaded = []

    def load(self, path, like):
        self.loaded.append(path)
        return {name: np.full(2, int(path), np.float32) for name in like}


class Source(SourceStub):
    stop_ids = (103,)

    def decode(self, tokens):
        return "|".join(map(str, tokens))


def version(number, fingerprint=None, name="w", shape=(2,), canary=None):
    fingerprint = number if fingerprint is None else fingerprint
    tensors = {name: TensorSpec(shape, "float32", fingerprint)}
    return make_version(number, str(number), tensors, canary)


def request(group, seeds, new=5, min_version=0, stop_ids=(), resume=(), purpose="train"):
    sampling, key = SamplingParams(max_new_tokens=new, stop_ids=stop_ids), Key(purpose, group)
    return Request(key, 1, PROMPT, tuple(seeds), sampling, min_version, tuple(resume))


def make_engine(slots, rollouts=None, deterministic=False, **options):
    limits = {"slots": 4, "max_prompt_tokens": 8, "max_new_tokens": 50, "group_size": 2}
    return JetstreamEngine(
        make_slots=lambda: slots,
        store=Store(),
        rollouts=Rollouts(**(limits | (rollouts or {}))),
        config=JetstreamConfig(**options),
        make_prompt_source=Source,
        deterministic=deterministic,
        fingerprint=lambda arrays: {name: np.uint32(value[0]) for name, value in arrays.items()},
    )


def play(scenario, slots=None, **options):
    """Runs ``scenario(engine, slots)`` under a deadline and closes the engine."""
    slots = slots or ScriptedSlots()
    engine = make_engine(slots, **options)

    async def run():
        async with asyncio.timeout(DEADLINE_S):
            return await scenario(engine, slots)

    try:
        return asyncio.run(run())
    finally:
        slots.gate.set()
        engine.close()


async def generated(engine, *requests):
    """The samples of each group."""
    groups = {}
    await engine.generate(requests, lambda key, samples: groups.update({key.group: samples}))
    return groups


async def under_way(engine, slots, weights, *requests):
    """``generated`` on its way: its first decode call waits for ``slots.gate``."""
    await take_version(engine, weights)
    slots.gate.clear()
    slots.decoding.clear()
    running = asyncio.ensure_future(generated(engine, *requests))
    await until(slots.decoding)
    return running


async def until(event):
    assert await asyncio.to_thread(event.wait, DEADLINE_S)
