"""Scanned weights, laid out for a CPU: the same variables, and the same samples."""

import numpy as np
import pytest
from tiny_engine import NEW, Case, compiled_decoding, prompts_of, reference_logprobs

from maxtext_overrides.layer_major import LayerMajor, layer_axes
from maxtext_overrides.sampler.decode import Prefill
from rlax_plugin.base.types import SamplingParams
from rlax_plugin.weights.device_fingerprint import fingerprint

SAMPLING = SamplingParams(max_new_tokens=NEW)


@pytest.fixture(scope="module")
def dense():
    return Case(scan_layers=True)


def test_laid_out_weights_are_what_was_published(dense):
    laid_out = dict(dense.weights)
    dense.engine.lay_out(laid_out)
    moved = {name for name, one in laid_out.items() if isinstance(one, LayerMajor)}
    layers = {name for name in laid_out if "layers." in name}
    assert moved == layers and len(layers) >= 9
    for name, like in dense.engine.variables_like().items():
        assert (laid_out[name].shape, laid_out[name].dtype) == (like.shape, like.dtype)
    for name in moved:
        layer = np.asarray(dense.weights[name])[:, -1]
        np.testing.assert_array_equal(laid_out[name].array[-1], layer)
    found = dense.engine.fingerprints(laid_out, fingerprint)
    expected = fingerprint(dense.weights)
    assert {n: int(v) for n, v in found.items()} == {n: int(v) for n, v in expected.items()}


def test_samples_are_the_same_and_their_logprobs_the_trainers(dense):
    first, second = prompts_of(5, 8)
    requests = [Prefill(first, (0, 5), (1, 2), SAMPLING), Prefill(second, (2,), (3,), SAMPLING)]
    laid_out = dict(dense.weights)
    dense.engine.lay_out(laid_out)
    expected, found = dense.generate(requests), dense.generate(requests, laid_out)
    for slot, prompt in ((0, first), (5, first), (2, second)):
        np.testing.assert_array_equal(found[slot].tokens, expected[slot].tokens)
        logits = dense.completion_logits(prompt, found[slot].tokens)
        full, _ = reference_logprobs(logits, found[slot].tokens, SAMPLING)
        np.testing.assert_allclose(found[slot].logprobs, full, atol=1e-4)


def test_a_decode_step_copies_no_stack_of_layers(dense):
    """What laying out is for: without it, XLA moves the axis of the layers in every step."""
    engine = dense.engine
    laid_out = dict(dense.weights)
    engine.lay_out(laid_out)
    stacks = {
        tuple(one.array.shape)
        for one in laid_out.values()
        if isinstance(one, LayerMajor) and one.array.ndim > 2
    }

    def copied(weights):
        text = compiled_decoding(engine, weights)
        forms = [f"f32[{','.join(map(str, shape))}]" for shape in stacks]
        lines = [line for line in text.splitlines() if "transpose(" in line]
        return sum(any(f"= {form}" in line for form in forms) for line in lines)

    assert copied(dense.weights) > 0
    assert copied(laid_out) == 0


def test_which_axis_has_the_layers():
    axes = {"a": ("embed", "layers", "mlp"), "b": ("layers", "embed"), "c": ("vocab", "embed")}
    assert layer_axes(axes | {"d": ("q_lora", "x", "moe_layers")}) == {"a": 1, "d": 2}
