"""The canary decodes: a decode path that is wrong is found although prefill is right."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from memory_store import Memory
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from tiny_engine import NEW, PROMPT, SLOTS, configure, prompts_of, random_weights

from maxtext_overrides.sampler.decode import DecodeEngine
from maxtext_overrides.sampler.maxengine_model import MaxEngineModel
from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import Canary, Key, Request, SamplingParams
from rlax_plugin.config import Rollouts
from rlax_plugin.weights.verification import take_version

DEADLINE_S = 120
BFLOAT16 = {"dtype": "bfloat16", "weight_dtype": "bfloat16"}


def group_of(slots, *, canary, tolerance=1e-4):
    """What a group of fixed seeds generates with weights that were taken up."""
    store, weights = Memory(), random_weights(slots)
    (tokens,) = prompts_of(PROMPT)
    proof = Canary(tokens, slots.logprobs(weights, tokens), tolerance) if canary else None
    version = replace(store.add(weights, slots), canary=proof)
    engine = JetstreamEngine(
        make_slots=lambda: slots,
        store=store,
        rollouts=Rollouts(slots=SLOTS, max_prompt_tokens=PROMPT, max_new_tokens=NEW, group_size=2),
        config=JetstreamConfig(warm_up=False),
        make_prompt_source=lambda: None,
        deterministic=True,
    )
    (prompt,) = prompts_of(5)
    sampling = SamplingParams(max_new_tokens=NEW)
    request = Request(Key("train", 0), 1, prompt, (7, 8, 9), sampling)

    async def scenario():
        await take_version(engine, version, max_new_tokens=NEW)
        figures = engine.health()
        assert figures["tokens_total"] == figures["steps_total"] == 0
        assert figures["prefill_tokens_total"] == figures["prefill_computed_total"] == 0
        found = []
        await engine.generate([request], lambda key, samples: found.append(samples))
        return found[0]

    try:
        return asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
    finally:
        engine.close()


@pytest.fixture
def bfloat16():
    return SimpleNamespace(engine=DecodeEngine(configure(**BFLOAT16)))


@pytest.mark.parametrize(("model", "tolerance"), [("dense", 1e-4), ("bfloat16", 0.5)])
def test_it_agrees_and_samples_stay_the_same_to_the_last_bit(model, tolerance, request):
    slots = request.getfixturevalue(model).engine  # a compiled one, where it is several files'
    slots.forget_totals()
    with_canary = group_of(slots, canary=True, tolerance=tolerance)
    slots.reset()
    slots.forget_totals()
    without = group_of(slots, canary=False)
    for one, other in zip(with_canary, without, strict=True):
        assert len(one.tokens) == NEW
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_a_wrong_decode_path_is_a_mismatch(monkeypatch):
    step = MaxEngineModel.step

    def off_by_one(self, weights, caches, token, position):
        return step(self, weights, caches, token, position + 1)

    monkeypatch.setattr(MaxEngineModel, "step", off_by_one)
    slots = DecodeEngine(configure())
    with pytest.raises(WeightsMismatchError, match="decoding behind the canary gives its token"):
        group_of(slots, canary=True)
