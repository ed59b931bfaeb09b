"""Decoding attends to as much of the prompts' caches as the prompts in use need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_engine import MOE, NEW, Case, log_softmax, prompts_of

from maxtext_overrides.sampler import buckets
from maxtext_overrides.sampler.decode import Prefill
from rlax_plugin.base.types import SamplingParams

LONGEST = 64
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "scanned": {"scan_layers": True},
    "latent attention": MOE,
    "rounded caches": {"quantize_kvcache": True, "dtype": "bfloat16"},
}


@pytest.fixture(
    scope="module",
    params=[
        name if name == "dense" else pytest.param(name, marks=pytest.mark.long) for name in MODELS
    ],
)
def case(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_SHORTEST_REACH", 4)
        target = LONGEST + NEW
        yield Case(
            max_prefill_predict_length=LONGEST, max_target_length=target, **MODELS[request.param]
        )


def test_parts_are_a_quarter_of_the_next_one():
    assert buckets.reaches(8192) == (512, 2048, 8192)
    assert buckets.reaches(1024) == (256, 1024)
    assert buckets.reaches(511) == (511,)
    assert buckets.reaches(3) == (3,)


def test_logprobs_are_the_trainers_whatever_part_is_attended_to(case, monkeypatch):
    """Prompts of 3, 10 and 40 tokens join one after the other; the longest one ends first."""
    engine, reaches = case.engine, []
    run = engine._decode

    def decode(*arguments):
        reaches.append(arguments[-1])
        return run(*arguments)

    monkeypatch.setattr(engine, "_decode", decode)
    engine.reset()
    prompts, found = prompts_of(3, 10, 40), {}
    for slot, (prompt, new) in enumerate(zip(prompts, (NEW, NEW, 4), strict=True)):
        sampling = SamplingParams(max_new_tokens=new)
        engine.insert(case.weights, [Prefill(prompt, (slot,), (slot,), sampling)])
        found |= {one.slot: one for one in engine.decode(case.weights, 2, False)}
    for _ in range(3):
        found |= {one.slot: one for one in engine.decode(case.weights, 1000, True)}
    assert reaches == [4, 16, 64, 64, 16, 16]
    assert [len(found[slot].tokens) for slot in range(3)] == [NEW, NEW, 4]
    tolerance = 0.05 if engine.rounds_caches else 1e-4
    for slot, prompt in enumerate(prompts):
        tokens = found[slot].tokens
        logits = case.completion_logits(prompt, tokens)
        expected = log_softmax(logits)[np.arange(len(tokens)), tokens]
        np.testing.assert_allclose(found[slot].logprobs, expected, atol=tolerance)
