"""The canary against other ways to the same log-probs, and what it must notice."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import tiny_engine
import tiny_loop as tests
from flax import nnx
from rlax_maxtext.canary_forward import CanaryForward, tolerance

from maxtext_overrides.sampler.decode import DecodeEngine
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from maxtext_overrides.variables import restore

TOKENS = np.random.default_rng(0).integers(0, tests.VOCAB, 9).astype(np.int32)
SCANNED = {"scan_layers": True}
# So many that XLA would leave out MaxText's rounding of the tied embedding in one of the programs.
MANY_WORDS = {"scan_layers": False, "vocab_size": 8192}
EXPERTS = tiny_engine.MOE | {"scan_layers": False}
BFLOAT16 = {"scan_layers": False, "dtype": "bfloat16", "weight_dtype": "bfloat16"}


def at_start(tmp_path, look, **overrides):
    """What ``look`` returns of the loop before its first step."""
    found = []

    class Enough(Exception):
        pass

    def on_start(loop):
        found.append(look(loop))
        raise Enough

    config = tests.configure(tmp_path, **overrides)
    events = Events(batches=tests.batch, on_step_end=lambda *_: None, on_start=on_start)
    with pytest.raises(Enough):
        run_train_loop(config, events, arrays=tests.ARRAYS, objective=tests.policy_gradient)
    return found[0]


def live_logprobs(loop, tokens):
    """The live model on the sequence alone, log-softmax in float64."""
    model = nnx.merge(loop.graph, loop.model_state, copy=True)
    inputs = tokens[None, :-1]
    with loop.shardings():
        logits = model(
            decoder_input_tokens=inputs,
            decoder_positions=np.arange(inputs.shape[1], dtype=np.int32)[None],
            decoder_segment_ids=np.ones_like(inputs),
            enable_dropout=False,
        )
    logprobs = tiny_engine.log_softmax(np.asarray(logits[0], np.float64))
    return logprobs[np.arange(inputs.shape[1]), tokens[1:]]


@pytest.mark.parametrize(
    "model",
    [SCANNED, EXPERTS, pytest.param(MANY_WORDS, marks=pytest.mark.long)],
    ids=["scanned", "experts", "many words"],
)
def test_it_is_what_the_live_model_and_the_worker_compute(tmp_path, model):
    def look(loop):
        forward, arrays = CanaryForward(TOKENS), fresh_weights(loop)
        canary = forward(loop, arrays)
        # Of the published buffers, not of the live model: it notices one weight.
        name = next(n for n in sorted(arrays) if n.endswith("wi_0.kernel"))
        first = (0,) * arrays[name].ndim
        changed = forward(loop, arrays | {name: arrays[name].at[first].add(0.1)})
        assert np.abs(changed.logprobs - canary.logprobs).max() > 1e-4
        return arrays, canary, live_logprobs(loop, TOKENS), tolerance(loop)

    arrays, canary, expected, allowed = at_start(tmp_path, look, **model)
    assert allowed == canary.tolerance == 1e-4
    np.testing.assert_array_equal(canary.tokens, TOKENS)
    assert canary.logprobs.dtype == np.float32
    np.testing.assert_allclose(canary.logprobs, expected, atol=1e-6)
    engine = DecodeEngine(tiny_engine.configure(**model))
    worker = engine.logprobs(arrays, TOKENS)  # the buffers are intact: nothing was donated
    np.testing.assert_allclose(worker, canary.logprobs, atol=1e-5)


def test_a_rounded_version_is_computed_with_alike(tmp_path):
    """The worker's model is that of float32 weights; it gets the rounded ones."""

    def look(loop):
        exact, arrays = fresh_weights(loop), fresh_weights(loop, rounds=True)
        canary = CanaryForward(TOKENS)(loop, arrays)
        back = {name: array.astype(exact[name].dtype) for name, array in arrays.items()}
        rounded = SimpleNamespace(
            graph=loop.graph, model_state=restore(loop.model_state, back), shardings=loop.shardings
        )
        return exact, arrays, canary, live_logprobs(rounded, TOKENS), live_logprobs(loop, TOKENS)

    exact, arrays, canary, expected, unrounded = at_start(tmp_path, look, **EXPERTS)
    for name, array in exact.items():
        matrix = (
            name.endswith(("embedding", "wi_0", "wi_1", "wo", ".kernel")) and "gate" not in name
        )
        assert arrays[name].dtype == ("bfloat16" if matrix else "float32"), name
        by_numpy = np.asarray(array).astype(arrays[name].dtype)
        np.testing.assert_array_equal(np.asarray(arrays[name]), by_numpy)
    assert canary.tolerance == 1e-4
    np.testing.assert_allclose(canary.logprobs, expected, atol=1e-6)
    assert np.abs(expected - unrounded).max() > 1e-4  # else this would show nothing
    engine = DecodeEngine(tiny_engine.configure(**EXPERTS), rounds=True)
    like = engine.variables_like()
    assert {n: (x.shape, x.dtype) for n, x in like.items()} == {
        n: (x.shape, x.dtype) for n, x in arrays.items()
    }
    worker = engine.logprobs(arrays, TOKENS)
    np.testing.assert_allclose(worker, canary.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        EXPERTS | {"float32_gate_logits": True},
        {"scan_layers": False, "logits_dot_in_fp32": True, "logits_via_embedding": False},
    ],
    ids=["experts", "logits in float32"],
)
def test_in_bfloat16_a_rounded_version_makes_no_difference(tmp_path, model):
    """MaxText casts what is rounded in any case, and computes in float32 with what is not."""

    def look(loop):
        forward, dtypes = CanaryForward(TOKENS), fresh_weights(loop, rounds=True)
        # Gates of experts decide between them, so that their rounding shows.
        exact = {n: a * (100 if "gate" in n else 1) for n, a in fresh_weights(loop).items()}
        rounded = {name: array.astype(dtypes[name].dtype) for name, array in exact.items()}
        everything = {name: array.astype("bfloat16") for name, array in exact.items()}
        return [forward(loop, arrays).logprobs for arrays in (exact, rounded, everything)]

    exact, rounded, everything = at_start(
        tmp_path, look, **model, dtype="bfloat16", weight_dtype="float32"
    )
    np.testing.assert_array_equal(np.asarray(exact), np.asarray(rounded))
    assert np.abs(np.asarray(everything) - np.asarray(exact)).max() > 1e-4


def test_bfloat16_is_held_to_gross_errors(tmp_path):
    def look(loop):
        arrays = fresh_weights(loop)
        return arrays, CanaryForward(TOKENS)(loop, arrays)

    arrays, canary = at_start(tmp_path, look, **BFLOAT16)
    engine = DecodeEngine(tiny_engine.configure(**BFLOAT16))
    assert canary.tolerance == 0.5
    assert np.abs(engine.logprobs(arrays, TOKENS) - canary.logprobs).max() < 0.1
    shuffled = {
        name: jax.random.permutation(jax.random.key(0), value) if "embedding" in name else value
        for name, value in arrays.items()
    }
    assert np.abs(engine.logprobs(shuffled, TOKENS) - canary.logprobs).max() > 0.5


def test_none_without_tokens_or_where_experts_drop_tokens(tmp_path):
    for tokens in ([], [3]):
        assert CanaryForward(np.array(tokens, np.int32))(None, {}) is None
    dropping = SimpleNamespace(config=tests.configure(tmp_path, **EXPERTS, capacity_factor=1.0))
    assert CanaryForward(np.array([3, 4], np.int32))(dropping, {}) is None
