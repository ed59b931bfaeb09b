"""The decode engine: its log-probs are the trainer's, and a sample depends on its seed only."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_engine import (
    MOE,
    NEW,
    PROMPT,
    SLOTS,
    VOCAB,
    Case,
    compiled_decoding,
    log_softmax,
    prompts_of,
    reference_logprobs,
)

from maxtext_overrides import variables
from maxtext_overrides.sampler.decode import Prefill
from rlax_plugin.base.errors import WeightsError
from rlax_plugin.base.types import SamplingParams


@pytest.fixture(scope="module")
def moe():
    """DeepSeek's experts."""
    return Case(**MOE)


SETTINGS = [(0.7, 0, 1.0), (0.7, 8, 1.0), (1.0, 0, 0.9)]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_logprobs_are_the_trainers(dense, temperature, top_k, top_p):
    sampling = SamplingParams(temperature, top_k, top_p, max_new_tokens=NEW)
    first, second = prompts_of(5, 8)
    requests = [Prefill(first, (0, 5), (1, 2), sampling), Prefill(second, (2,), (3,), sampling)]
    generated = dense.generate(requests)
    assert set(generated) == {0, 2, 5}
    for slot, prompt in ((0, first), (5, first), (2, second)):
        sample = generated[slot]
        assert sample.tokens.shape == (NEW,)
        logits = dense.completion_logits(prompt, sample.tokens)
        full, sampled = reference_logprobs(logits, sample.tokens, sampling)
        np.testing.assert_allclose(sample.logprobs, full, atol=1e-4)
        np.testing.assert_allclose(sample.truncated_logprobs, sampled, atol=1e-4)


def test_every_ring_offset_and_a_full_ring_give_the_trainers_logprobs(dense):
    sampling = SamplingParams(max_new_tokens=NEW)
    (prompt,) = prompts_of(6)
    generated = []
    for i in range(2 * NEW):  # a long sample per step, at every offset of the ring, twice around
        dense.engine.insert(
            dense.weights, [Prefill(prompt, (dense.engine.free_slots[0],), (i,), sampling)]
        )
        generated += dense.engine.decode(dense.weights, 2, True)
    generated += dense.engine.decode(dense.weights, 1000, False)
    assert len(generated) == 2 * NEW
    for sample in generated:
        logits = dense.completion_logits(prompt, sample.tokens)
        full, _ = reference_logprobs(logits, sample.tokens, sampling)
        np.testing.assert_allclose(sample.logprobs, full, atol=1e-4)


def test_a_sample_depends_on_its_seed_only(dense):
    first, second = prompts_of(5, 7)
    sampling = SamplingParams(max_new_tokens=NEW)
    alone = dense.generate([Prefill(first, (0,), (77,), sampling)])[0]
    truncated = SamplingParams(0.5, 4, 0.8, max_new_tokens=NEW)
    dense.engine.insert(dense.weights, [Prefill(second, (0, 1, 6), (5, 6, 7), truncated)])
    dense.engine.decode(dense.weights, 3, False)
    crowded = dense.generate([Prefill(first, (4, 3), (77, 78), sampling)])
    np.testing.assert_array_equal(crowded[4].tokens, alone.tokens)
    np.testing.assert_allclose(crowded[4].logprobs, alone.logprobs, atol=1e-5)
    np.testing.assert_allclose(crowded[4].truncated_logprobs, alone.logprobs, atol=1e-5)
    assert not np.array_equal(crowded[3].tokens, alone.tokens)


def test_a_freed_slot_takes_a_new_request_while_a_long_sample_runs(dense):
    (prompt,) = prompts_of(5)
    long, short = SamplingParams(max_new_tokens=NEW), SamplingParams(max_new_tokens=3)
    before = dense.engine.steps_total
    everyone = [
        Prefill(prompt, (0,), (1,), long),
        Prefill(prompt, tuple(range(1, 8)), (2,) * 7, short),
    ]
    dense.engine.insert(dense.weights, everyone)
    ended = dense.engine.decode(dense.weights, 1000, True)
    assert sorted(f.slot for f in ended) == list(range(1, 8))
    assert dense.engine.steps_total - before == 2  # its first token came from the prefill
    dense.engine.insert(dense.weights, [Prefill(prompt, (4,), (3,), short)])
    (ended,) = dense.engine.decode(dense.weights, 1000, True)
    assert ended.slot == 4 and dense.engine.steps_total - before == 4
    (ended,) = dense.engine.decode(dense.weights, 1000, True)
    assert ended.slot == 0 and dense.engine.steps_total - before == NEW - 1
    alone = dense.generate([Prefill(prompt, (6,), (1,), long)])[6]
    np.testing.assert_array_equal(ended.tokens, alone.tokens)


def test_stop_ids_and_greedy(dense):
    (prompt,) = prompts_of(5)
    greedy = SamplingParams(temperature=0.0, max_new_tokens=NEW)
    sample = dense.generate([Prefill(prompt, (0,), (1,), greedy)])[0]
    logits = dense.completion_logits(prompt, sample.tokens)
    np.testing.assert_array_equal(sample.tokens, logits.argmax(axis=-1))
    at_one = log_softmax(logits)[np.arange(NEW), sample.tokens]
    np.testing.assert_allclose(sample.logprobs, at_one, atol=1e-4)
    np.testing.assert_array_equal(sample.truncated_logprobs, 0.0)
    stop = int(sample.tokens[3])
    first = int(np.argmax(sample.tokens == stop))
    stopping = SamplingParams(temperature=0.0, max_new_tokens=NEW, stop_ids=(VOCAB + 1, stop))
    stopped = dense.generate([Prefill(prompt, (0,), (1,), stopping)])[0]
    np.testing.assert_array_equal(stopped.tokens, sample.tokens[: first + 1])


def test_a_router_bias_reaches_the_decode(moe):
    (name,) = [n for n in moe.weights if n.endswith("gate.bias")]
    (prompt,) = prompts_of(5)
    sampling = SamplingParams(max_new_tokens=NEW)
    request = Prefill(prompt, (0, 1), (1, 2), sampling)
    generated = moe.generate([request])
    for sample in generated.values():
        logits = moe.completion_logits(prompt, sample.tokens)
        full, _ = reference_logprobs(logits, sample.tokens, sampling)
        np.testing.assert_allclose(sample.logprobs, full, atol=1e-4)
    bias = jnp.asarray([9.0, 0.0, 0.0, 9.0]) * jnp.ones_like(moe.weights[name])
    biased = moe.generate([request], moe.weights | {name: bias})
    assert np.abs(biased[0].logprobs[0] - generated[0].logprobs[0]) > 1e-3


def test_names_are_the_trainers(dense):
    trained, like = variables.published(dense.abstract), dense.engine.variables_like()
    assert list(trained) == list(like)
    assert {n: (s.shape, s.dtype) for n, s in trained.items()} == {
        n: (s.shape, s.dtype) for n, s in like.items()
    }


def test_restore_is_the_inverse_of_published(moe):
    restored = variables.restore(moe.abstract, moe.weights)
    assert variables.published(restored).keys() == moe.weights.keys()
    for name, value in variables.published(restored).items():
        assert value is moe.weights[name]
    (bias,) = [n for n in moe.weights if n.endswith("gate.bias")]
    with pytest.raises(WeightsError, match=re.escape(f"{bias!r} is missing")):
        variables.restore(moe.abstract, {n: a for n, a in moe.weights.items() if n != bias})
    with pytest.raises(WeightsError, match="has shape"):
        variables.restore(moe.abstract, moe.weights | {bias: jnp.zeros(3)})


def test_what_does_not_fit_is_rejected(dense):
    (prompt,) = prompts_of(5)
    fits = SamplingParams(max_new_tokens=NEW)
    bad = [
        (Prefill(np.zeros(PROMPT + 1, np.int32), (0,), (1,), fits), "9 tokens"),
        (Prefill(np.zeros(0, np.int32), (0,), (1,), fits), "0 tokens"),
        (Prefill(prompt, (0,), (1,), SamplingParams(max_new_tokens=NEW + 1)), "max_new_tokens 13"),
        (
            Prefill(prompt, (0,), (1,), SamplingParams(max_new_tokens=1, stop_ids=tuple(range(9)))),
            "9 stop ids",
        ),
        (Prefill(prompt, (0, 0), (1, 2), fits), "slot 0 is taken"),
    ]
    for request, message in bad:
        with pytest.raises(ValueError, match=message):
            dense.engine.insert(dense.weights, [request])
    assert dense.engine.free_slots == list(range(SLOTS))


def test_the_loop_does_not_copy_the_caches(dense):
    engine = dense.engine
    text = compiled_decoding(engine, dense.weights)
    shapes = {
        ",".join(map(str, spec.shape))
        for path, spec in engine.model.caches_like.items()
        if path[-1] in ("cached_ar_key", "cached_prefill_key")
    }
    copied = re.findall(r"f32\[([\d,]+)\]\S* copy\(", text)
    assert len(shapes) == 2 and not shapes & set(copied)
