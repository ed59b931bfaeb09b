"""Workers that generate with int8 matrices: what they compute, and what of it is verified."""

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from memory_store import Memory, prompt_of
from rlax_jetstream import JetstreamConfig
from rlax_jetstream.engine import JetstreamEngine
from test_adapter_faults import Parts, take
from test_adapters import LORA
from tiny_engine import (
    NEW,
    PROMPT,
    SLOTS,
    Case,
    configure,
    prompts_of,
    random_weights,
    reference_logprobs,
)

from maxtext_overrides import adapters, int8_weights
from maxtext_overrides.config.memory import of_decoding
from maxtext_overrides.int8_weights import Int8
from maxtext_overrides.layer_major import LayerMajor
from maxtext_overrides.sampler.decode import DecodeEngine, Prefill
from rlax_plugin.base.errors import ConfigError, WeightsMismatchError
from rlax_plugin.base.types import Canary, Key, Request, SamplingParams, WeightVersion
from rlax_plugin.config import Rollouts

SAMPLING = SamplingParams(max_new_tokens=NEW)
KERNELS = {"query", "key", "value", "out", "wi_0", "wi_1", "wo"}


def published(array):
    return array.published() if isinstance(array, LayerMajor) else array


def dequantised(arrays):
    """The arrays that a forward pass with ``arrays`` must agree with."""
    return {
        name: published(one.values) * published(one.scales)
        if isinstance(one, Int8)
        else published(one)
        for name, one in arrays.items()
    }


def test_each_output_has_the_scale_of_its_largest_weight():
    weights = {"w": jnp.array([[1.27, -2.54, 0.0], [0.301, 1.023, 0.0]]), "norm": jnp.ones(2)}
    int8_weights.convert(weights, {"w": (0,)}, jnp.float32)
    found = weights["w"]
    assert found.values.dtype == jnp.int8 and found.dtype == jnp.float32
    np.testing.assert_allclose(found.scales, [[0.01, 0.02, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(found.values, [[127, -127, 0], [30, 51, 0]])
    np.testing.assert_array_equal(weights["norm"], [1, 1])


def test_scales_are_numbers_of_the_dtype_of_arithmetic():
    exact = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    int8_weights.convert(weights := {"w": jnp.asarray(exact)}, {"w": (0,)}, jnp.bfloat16)
    scales = weights["w"].scales
    np.testing.assert_array_equal(scales, scales.astype(jnp.bfloat16).astype(jnp.float32))
    # Where a scale was rounded down, the largest weight is still within half a step.
    assert (np.abs(weights["w"].values * scales - exact) <= 0.5001 * scales).all()


@pytest.fixture(scope="module")
def case():
    case = Case(scan_layers=True)
    case.engine = DecodeEngine(case.config, quantizes=True)
    return case


def converted(engine, weights):
    engine.lay_out(arrays := dict(weights))
    engine.convert(arrays)
    return arrays


def test_logprobs_are_those_of_a_forward_pass_with_the_dequantised_matrices(case):
    weights = converted(case.engine, case.weights)
    exact, found = case.weights, dequantised(weights)
    changed = {name for name in exact if isinstance(weights[name], Int8)}
    assert {name.split(".")[-2] for name in changed} == KERNELS
    for name in changed:
        steps = np.broadcast_to(published(weights[name].scales), exact[name].shape)
        assert steps.size // np.unique(steps).size >= 16  # one for each output, not for each weight
        assert (np.abs(found[name] - exact[name]) <= 0.501 * steps).all()
        assert (weights[name].shape, weights[name].dtype) == (exact[name].shape, exact[name].dtype)
    (prompt,) = prompts_of(PROMPT)
    case.engine.insert(weights, [Prefill(prompt, (0,), (1,), SAMPLING)])
    (sample,) = case.engine.decode(weights, 1000, False)
    of_found, _ = reference_logprobs(
        case.completion_logits(prompt, sample.tokens, found), sample.tokens, SAMPLING
    )
    of_exact, _ = reference_logprobs(
        case.completion_logits(prompt, sample.tokens), sample.tokens, SAMPLING
    )
    np.testing.assert_allclose(sample.logprobs, of_found, atol=1e-5)
    assert np.abs(sample.logprobs - of_exact).max() > 1e-3


@contextlib.contextmanager
def engine_over(slots, store):
    slots.reset()
    engine = JetstreamEngine(
        make_slots=lambda: slots,
        store=store,
        rollouts=Rollouts(slots=SLOTS, max_prompt_tokens=PROMPT, max_new_tokens=NEW, group_size=2),
        config=JetstreamConfig(warm_up=False, quantization="int8"),
        make_prompt_source=lambda: None,
        deterministic=True,
    )
    with contextlib.closing(engine):
        yield engine


def generated(engine):
    found = []
    request = Request(Key("train", 0), 1, prompts_of(5)[0], (7, 8), SAMPLING)
    ended = engine.generate([request], lambda key, samples: found.extend(samples))
    asyncio.run(asyncio.wait_for(ended, 120))
    return found


def test_the_exact_weights_are_verified_and_the_converted_ones_generate(case):
    slots, store = case.engine, Memory()
    version = store.add(case.weights, slots)
    assert version.canary.tolerance == 1e-4  # conversion changes log-probs by more
    damaged = store.add(case.weights, slots)
    store.versions[1] = case.weights | {
        name: case.weights[name].at[(0,) * case.weights[name].ndim].add(1e-6)
        for name in slots.model.kernels
    }
    with engine_over(slots, store) as engine:
        take(engine, version)
        samples = generated(engine)
        with pytest.raises(WeightsMismatchError, match="has fingerprint"):
            take(engine, damaged)
        wrong = replace(version.canary, logprobs=version.canary.logprobs + 2e-4)
        with pytest.raises(WeightsMismatchError, match="canary's log-prob"):
            take(engine, replace(version, version=1, step=1, canary=wrong))
        assert engine.version == 0
        again = generated(engine)
    found = dequantised(converted(slots, case.weights))
    for sample, same in zip(samples, again, strict=True):
        np.testing.assert_array_equal(sample.tokens, same.tokens)
        logits = case.completion_logits(prompts_of(5)[0], sample.tokens, found)
        expected, _ = reference_logprobs(logits, sample.tokens, SAMPLING)
        np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)


def test_adapters_stay_exact_and_a_base_in_use_is_read_and_verified_again():
    slots = DecodeEngine(configure(lora=LORA), quantizes=True)
    store, weights = Parts(), random_weights(slots)
    base = {n: a for n, a in weights.items() if not adapters.is_adapter(n)}
    own = {n: a for n, a in weights.items() if adapters.is_adapter(n)}
    parts = (store.add("base", "base", base), store.add("adapter", "adapter", own))
    tokens = prompt_of(PROMPT)
    canary = Canary(tokens, slots.logprobs(weights, tokens), 1e-4)
    slots.convert(generating := dict(weights))
    assert not any(isinstance(generating[name], Int8) for name in own)
    without = {n: jnp.zeros_like(a) if n in own else a for n, a in weights.items()}
    slots.convert(without)
    expected = slots.logprobs(dequantised(generating), tokens)
    np.testing.assert_allclose(slots.logprobs(generating, tokens), expected, atol=1e-5)
    assert np.abs(slots.logprobs(without, tokens) - expected).max() > 0.01
    with engine_over(slots, store) as engine:
        for number in (0, 1):
            take(engine, WeightVersion(number, number, parts, canary))
        assert engine.version == 1
    assert store.read == ["base", "adapter"] * 2


def test_the_memory_is_that_of_int8_matrices_beside_a_whole_new_version():
    config = configure()
    plain, needed = of_decoding(config, 0), of_decoding(config, 0, quantizes=True)
    assert needed.new == plain.weights == plain.new
    # 2 layers, width 32, MLP 64: of 4 bytes a weight 1 is left, and 4 more for each output.
    weights, outputs = 2 * (4 * 32 * 32 + 3 * 32 * 64), 2 * (4 * 32 + 2 * 64 + 32)
    assert plain.weights.nbytes - needed.weights.nbytes == 3 * weights - 4 * outputs


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"quantization": "int8"}, "quantization = 'int8': must be empty with"),
        ({"num_experts": 4}, "must be null with num_experts = 4"),
        ({}, "must be null: it matches no matrix"),
    ],
)
def test_models_that_it_would_not_quantise_as_said_are_rejected(keys, says):
    config = SimpleNamespace(
        **{"quantization": "", "num_experts": 1, "allow_untested": False} | keys
    )
    with pytest.raises(ConfigError, match=says):
        int8_weights.kernels(nnx.Module(), config)
