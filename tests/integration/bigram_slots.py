"""Rollout engine ``bigram_slots``: the real JetStream engine over slots that need no MaxText.

The slots sample from the bigram policy of ``rlax_plugin.testing``, so that a run of its trainer can
be served, and a completion at temperature 0 can be told beforehand.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine

from rlax_plugin.api import BuildContext, Extension, hookimpl
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.build import build_weight_store
from rlax_plugin.config import Section
from rlax_plugin.rollout.batching.decode_engine import SlotOutput
from rlax_plugin.testing import policy
from rlax_plugin.testing.task import STOP, VOCABULARY
from rlax_plugin.weights.fingerprint import fingerprint_numpy


class BigramSlotsConfig(Section):
    step_s: float = 0.0
    at_least: int = 0  # so many tokens are no stop tokens
    break_on: int = -1  # it breaks when it is given a prompt that ends with this token
    wait_for: str = ""  # a file; nothing is built before it is there


@dataclass
class _Slot:
    seed: int
    sampling: SamplingParams
    previous: int
    at_least: int
    tokens: list[int] = field(default_factory=list)
    full: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)

    def generate(self, weights):
        temperature = self.sampling.temperature or 1.0
        logprobs_v = policy.log_probs(weights, np.array([self.previous]), temperature)[0]
        if len(self.tokens) < self.at_least:
            logprobs_v[STOP] = -np.inf
        uniform = policy.uniform(self.seed, len(self.tokens))
        self.previous, full, sampled = policy.choose(logprobs_v, uniform, self.sampling)
        self.tokens.append(self.previous)
        self.full.append(full)
        self.sampled.append(sampled)

    @property
    def ended(self):
        stopped = self.previous in self.sampling.stop_ids
        return stopped or len(self.tokens) == self.sampling.max_new_tokens


class BigramSlots:
    """Implements ``rlax_plugin.rollout.batching.decode_engine.DecodeSlots``; without resumed
    samples."""

    def __init__(self, rollouts, config):
        self.slots, self.max_prompt_tokens = rollouts.slots, rollouts.max_prompt_tokens
        self.max_new_tokens = rollouts.max_new_tokens
        self.vocabulary, self.rounds_caches, self.converts = VOCABULARY, False, False
        self.steps_total = self.slot_steps_total = self.tokens_total = 0
        self.prefill_tokens_total = self.prefill_computed_total = self.prefill_kept_total = 0
        self._config, self._running = config, {}

    @property
    def free_slots(self):
        return [slot for slot in range(self.slots) if slot not in self._running]

    def variables_like(self):
        return {name: np.empty(shape, np.float32) for name, shape in policy.SHAPES.items()}

    def lay_out(self, arrays):
        pass

    def convert(self, arrays):
        pass

    def fingerprints(self, arrays, made_by):
        return made_by(arrays)

    def insert(self, weights, requests):
        for r in requests:
            if int(r.tokens[-1]) == self._config.break_on:
                raise RuntimeError("the device is gone")
            for slot, seed in zip(r.slots, r.seeds, strict=True):
                sample = _Slot(seed, r.sampling, int(r.tokens[-1]), self._config.at_least)
                self._running[slot] = sample
                sample.generate(weights)
                self.tokens_total += 1

    def decode(self, weights, max_steps, stop_when_free):
        steps = 0
        while steps < max_steps and (going := [s for s in self._running.values() if not s.ended]):
            if stop_when_free and len(going) < len(self._running):
                break
            time.sleep(self._config.step_s)
            for sample in going:
                sample.generate(weights)
            steps += 1
            self.tokens_total += len(going)
            self.slot_steps_total += len(going)
        self.steps_total += steps
        ended = [slot for slot, sample in self._running.items() if sample.ended]
        generated = self.read(ended)
        self.release(ended)
        return generated

    def read(self, slots):
        return [
            SlotOutput(
                slot,
                np.array(self._running[slot].tokens, np.int32),
                np.array(self._running[slot].full, np.float32),
                np.array(self._running[slot].sampled, np.float32),
            )
            for slot in slots
        ]

    def release(self, slots):
        for slot in slots:
            del self._running[slot]

    def logprobs(self, weights, tokens):
        return policy.sequence_log_probs(weights, tokens)

    def warm_up(self):
        pass

    def kept_for(self, context):
        return None

    def forget_contexts(self):
        pass


def build(config: BigramSlotsConfig, context: BuildContext) -> JetstreamEngine:
    rollouts = context.section.rollouts

    def make_slots():
        while config.wait_for and not Path(config.wait_for).exists():
            time.sleep(0.01)
        return BigramSlots(rollouts, config)

    return JetstreamEngine(
        make_slots=make_slots,
        store=build_weight_store(context),
        rollouts=rollouts,
        config=JetstreamConfig(),
        make_prompt_source=lambda: context.part(
            "prompt_source", context.section.prompt_source, "rlax.prompt_source"
        ),
        fingerprint=fingerprint_numpy,
    )


@hookimpl
def rlax_register_rollout_engine() -> dict[str, Extension]:
    return {"bigram_slots": Extension(BigramSlotsConfig, build)}
