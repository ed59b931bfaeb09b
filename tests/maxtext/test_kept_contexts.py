"""A free slot keeps the context of its last sample, and the next turn prefills only what is new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_engine import MOE, NEW, VOCAB, Case, log_softmax, prompts_of

from maxtext_overrides.sampler import buckets
from maxtext_overrides.sampler.decode import DecodeEngine, Prefill
from rlax_plugin.types import SamplingParams

LONGEST = 96
SIZES = {"max_prefill_predict_length": LONGEST, "max_target_length": LONGEST + NEW}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "scanned": {"scan_layers": True},
    "latent attention": MOE,
    "windows": {"decoder_block": "gemma2", "sliding_window_size": 6, "base_num_decoder_layers": 2},
}


@pytest.fixture(
    scope="module",
    params=[
        name if name == "dense" else pytest.param(name, marks=pytest.mark.long) for name in MODELS
    ],
)
def case(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_SHORTEST_REACH", 8)
        made = Case(**SIZES, **MODELS[request.param])
        made.engine = DecodeEngine(made.config, prompt_tokens=32, group_size=1, keeps=True)
        yield made


def sampling(new: int) -> SamplingParams:
    return SamplingParams(max_new_tokens=new)


def turn(engine, weights, contexts, new):
    """Generates a sample behind each context; returns their tokens and log-probs in order."""
    requests, free = [], list(engine.free_slots)
    for i, context in enumerate(contexts):
        slot = engine.kept_for(context)
        slot = free[0] if slot is None else slot
        free.remove(slot)
        requests.append(Prefill(context, (slot,), (i,), sampling(new)))
    engine.insert(weights, requests)
    found = {}
    while len(found) < len(requests):
        found |= {one.slot: one for one in engine.decode(weights, 1000, True)}
    return [found[r.slots[0]] for r in requests]


def expected(case, context, tokens):
    logits = case.completion_logits(context, tokens)
    return log_softmax(logits)[np.arange(len(tokens)), tokens]


def test_later_turns_prefill_what_is_new_and_logprobs_are_the_trainers(case):
    engine, rng = case.engine, np.random.default_rng(0)
    engine.reset()
    engine.forget_totals()
    contexts, prefilled = prompts_of(3, 11, 20), []
    for new in (NEW, 7, 1, 9):
        before = engine.prefill_tokens_total
        generated = turn(engine, case.weights, contexts, new)
        prefilled.append(engine.prefill_tokens_total - before)
        for context, one in zip(contexts, generated, strict=True):
            assert len(one.tokens) == new
            np.testing.assert_allclose(one.logprobs, expected(case, context, one.tokens), atol=1e-4)
        contexts = [
            np.concatenate([context, one.tokens, rng.integers(0, VOCAB, 4).astype(np.int32)])
            for context, one in zip(contexts, generated, strict=True)
        ]
    # The last token of the turn before, and four of the environment, in each of three episodes.
    assert prefilled == [34, 15, 15, 15]
