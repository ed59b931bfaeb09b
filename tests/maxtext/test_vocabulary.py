"""Log-probs and entropy, dense and by vocabulary tile: numbers, gradients, memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_loop as tests
from equivalent_runs import entropy_too
from flax import nnx

from maxtext_overrides.config import loading as rlax_config
from maxtext_overrides.trainer.loss import make_loss_fn
from maxtext_overrides.trainer.train_loop import Events, run_train_loop
from maxtext_overrides.upstream import lean_imports
from maxtext_overrides.vocabulary import Head, dense_outputs, tiled_outputs
from rlax_plugin.base.errors import ConfigError, TrainingError
from rlax_plugin.config.loading import resolve

ROWS, LENGTH, WIDTH, VOCABULARY = 2, 3, 8, 14
TEMPERATURE = 0.7
SOFT_CAP = 3.0


def tied(hidden_bte, table):
    return hidden_bte @ table.T


def untied(hidden_bte, kernel):
    return hidden_bte @ kernel


def capped(hidden_bte, table):
    return SOFT_CAP * jnp.tanh(tied(hidden_bte, table) / SOFT_CAP)


def inputs(axis=0, vocabulary=VOCABULARY):
    rng = np.random.default_rng(0)
    hidden_bte = rng.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)
    table = rng.normal(size=(vocabulary, WIDTH)).astype(np.float32)
    # The first and the last word, and one twice.
    targets_bt = np.array([[0, vocabulary - 1, 2], [5, 5, 9]], np.int32)
    return hidden_bte, table if axis == 0 else table.T.copy(), targets_bt


def by_jax(logits_btv, targets_bt):
    log_p_btv = jax.nn.log_softmax(logits_btv / TEMPERATURE)
    logprobs_bt = jnp.take_along_axis(log_p_btv, targets_bt[..., None], -1)[..., 0]
    return logprobs_bt, -(jnp.exp(log_p_btv) * log_p_btv).sum(-1)


def a_loss(outputs):
    """Weighs every token, and both results, differently."""
    logprobs_bt, entropy_bt = outputs[:2]
    weights_bt = jnp.linspace(-1.0, 2.0, logprobs_bt.size).reshape(logprobs_bt.shape)
    return (weights_bt * logprobs_bt).sum() + 0.3 * (weights_bt[::-1] * entropy_bt).sum()


@pytest.mark.parametrize("compiled", [False, True])
def test_dense_outputs_worked_out_by_hand(compiled):
    call = jax.jit(dense_outputs, static_argnums=2) if compiled else dense_outputs
    # At temperature 2: p = (1/2, 1/4, 1/4), and once all of it on one word.
    logits = 2 * np.log(np.array([[[0.5, 0.25, 0.25], [1.0, 1e-30, 1e-30]]], np.float32))
    outputs = call(logits, np.array([[0, 0]]), 2.0)
    np.testing.assert_allclose(outputs.logprobs_bt, [[np.log(0.5), 0.0]], atol=1e-6)
    np.testing.assert_allclose(outputs.entropy_bt, [[1.5 * np.log(2), 0.0]], atol=1e-6)
    # d H / d logit = -p (log p + H) / 2: log p + H is log 2 / 2 for the first, -log 2 / 2 for the
    # others. d logprob / d logit = ([v = 0] - p) / 2.
    by_entropy = jax.grad(lambda x: call(x, np.array([[0, 0]]), 2.0).entropy_bt.sum())(logits)
    expected = np.log(2) / 2 * np.array([-0.5, 0.25, 0.25]) / 2
    np.testing.assert_allclose(by_entropy, [[expected, [0, 0, 0]]], atol=1e-6)
    by_logprob = jax.grad(lambda x: call(x, np.array([[0, 0]]), 2.0).logprobs_bt.sum())(logits)
    np.testing.assert_allclose(by_logprob, [[[0.25, -0.125, -0.125], [0, 0, 0]]], atol=1e-6)


def test_dense_outputs_and_their_gradient_are_jaxs():
    hidden_bte, table, targets_bt = inputs()
    logits_btv = tied(hidden_bte, table)
    ours = dense_outputs(logits_btv, targets_bt, TEMPERATURE)[:2]
    for found, expected in zip(ours, by_jax(logits_btv, targets_bt), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
    found = jax.grad(lambda x: a_loss(dense_outputs(x, targets_bt, TEMPERATURE)))(logits_btv)
    expected = jax.grad(lambda x: a_loss(by_jax(x, targets_bt)))(logits_btv)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("logits", "axis", "tiles", "shards"),
    [(tied, 0, 2, 1), (untied, 1, 3, 2), (capped, 0, 3, 1), (tied, 0, 20, 2)],
)
def test_tiles_give_the_dense_outputs_and_gradients(logits, axis, tiles, shards):
    """14 words, or 2 shards of 7 words; 20 tiles are as many as there are words in a shard."""
    hidden_bte, weights, targets_bt = inputs(axis)
    head = Head(logits, axis, tiles, shards)

    def dense(hidden_bte, weights):
        outputs = dense_outputs(logits(hidden_bte, weights), targets_bt, TEMPERATURE)
        return a_loss(outputs), outputs

    def tiled(hidden_bte, weights):
        outputs = tiled_outputs(head, hidden_bte, weights, targets_bt, TEMPERATURE)
        return a_loss(outputs), outputs

    def results(call):
        gradients, outputs = call(hidden_bte, weights)
        return *outputs[:2], *gradients

    by_tiles, at_once = (jax.grad(f, argnums=(0, 1), has_aux=True) for f in (tiled, dense))
    for found, expected in zip(results(jax.jit(by_tiles)), results(at_once), strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-6)


def test_large_logits_neither_overflow_nor_lose_the_entropy():
    hidden_bte, table, targets_bt = inputs()
    table = table * 40  # logits of several hundred
    head = Head(tied, 0, 4)
    dense = dense_outputs(tied(hidden_bte, table), targets_bt, TEMPERATURE)
    tiled = tiled_outputs(head, hidden_bte, table, targets_bt, TEMPERATURE)
    for found, expected in zip(tiled[:2], dense[:2], strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_logits_are_summed_in_float32():
    logits_btv = jnp.asarray(np.random.default_rng(2).normal(size=(1, 2, 4096)), jnp.bfloat16)
    targets_bt = np.array([[1, 4095]], np.int32)
    ours = dense_outputs(logits_btv, targets_bt, TEMPERATURE)[:2]
    for found, expected in zip(
        ours, by_jax(np.asarray(logits_btv, np.float32), targets_bt), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-6)
    gradient = jax.grad(lambda x: a_loss(dense_outputs(x, targets_bt, 1.0)))(logits_btv)
    assert gradient.dtype == jnp.bfloat16


@pytest.mark.parametrize("tiles", [0, 3])
def test_each_token_has_its_own_temperature(tiles):
    """In each row the outputs and gradients are those of its temperature alone."""
    hidden_bte, table, targets_bt = inputs()

    def loss(hidden_bte, temperature):
        if tiles:
            head = Head(tied, 0, tiles=tiles)
            outputs = tiled_outputs(head, hidden_bte, table, targets_bt, temperature)
        else:
            outputs = dense_outputs(tied(hidden_bte, table), targets_bt, temperature)
        # The gradient of a row is that of its own tokens only.
        return (outputs.logprobs_bt - 0.3 * outputs.entropy_bt).sum(), outputs

    gradient = jax.grad(loss, has_aux=True)
    temperature_bt = jnp.array([[0.5] * LENGTH, [1.5] * LENGTH], jnp.float32)
    slope_bte, both = jax.jit(gradient)(hidden_bte, temperature_bt)
    for row, temperature in enumerate((0.5, 1.5)):
        alone_bte, alone = gradient(hidden_bte, temperature)
        np.testing.assert_allclose(slope_bte[row], alone_bte[row], atol=2e-6)
        for found, expected in zip(both[:2], alone[:2], strict=True):
            np.testing.assert_allclose(found[row], expected[row], rtol=2e-6)


def test_entropy_that_is_only_reported_costs_no_backward_pass():
    hidden_bte, table, targets_bt = inputs()
    head = Head(tied, 0, tiles=2)

    def flops(outputs_of, report):
        def loss(*arguments):
            outputs = outputs_of(*arguments, targets_bt, TEMPERATURE)
            return a_loss((outputs.logprobs_bt, report(outputs.entropy_bt)))

        def gradient(*arguments):
            return jax.grad(loss)(*arguments)

        arguments = (tied(hidden_bte, table),)
        if outputs_of is not dense_outputs:
            arguments = (hidden_bte, table)
        return jax.jit(gradient).lower(*arguments).compile().cost_analysis()["flops"]

    for outputs_of in (dense_outputs, partial(tiled_outputs, head)):
        unused = flops(outputs_of, jnp.zeros_like)
        assert flops(outputs_of, jax.lax.stop_gradient) == unused
        assert flops(outputs_of, lambda entropy_bt: entropy_bt) > 1.05 * unused


def temporary_bytes(directory, *argv):
    """Beside weights, batch and gradients, of the compiled loss and gradient of a whole model."""
    config = tests.configure(directory, *argv, steps=1)
    loss_fn = make_loss_fn(lean_imports.import_trainer(), entropy_too, 1.0)
    shape = (config.global_batch_size_to_load, config.max_target_length)
    data = {
        name: jax.ShapeDtypeStruct(spec.shape(*shape), spec.dtype)
        for name, spec in tests.ARRAYS.items()
    }
    found = []

    def on_start(loop):
        def step(model_state, data):
            model = nnx.merge(loop.graph, model_state, copy=True)
            gradient = nnx.value_and_grad(loss_fn, has_aux=True)
            (loss, _), by_weights = gradient(model, config, data, None, None)
            return loss, by_weights

        with loop.shardings():
            compiled = jax.jit(step).lower(loop.model_state, data).compile()
        found.append(compiled.memory_analysis().temp_size_in_bytes)
        raise TrainingError("seen enough")

    events = Events(batches=tests.batch, on_step_end=lambda loop, metrics: None, on_start=on_start)
    with pytest.raises(TrainingError, match="seen enough"):
        run_train_loop(config, events, arrays=tests.ARRAYS, objective=entropy_too)
    return found[0]


def test_no_logits_of_the_whole_vocabulary_exist_in_a_step(tmp_path):
    """4 x 2048 tokens and 131072 words, on which a dense step needs four such arrays."""
    rows, length, vocabulary = 4, 2048, 131072
    argv = (
        f"per_device_batch_size={rows}",
        f"max_target_length={length}",
        f"vocab_size={vocabulary}",
        "num_vocab_tiling=32",
    )
    assert temporary_bytes(tmp_path, *argv) < rows * length * vocabulary * 4 / 4


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("shard_mode=explicit", "shard_mode = 'explicit': must be auto with num_vocab_tiling"),
        ("parameter_memory_host_offload=true", "parameter_memory_host_offload = True: must be"),
        ("vocab_tiling_ag_once=true", "vocab_tiling_ag_once = True: must be false"),
        (
            "num_vocab_tiling=3",
            "num_vocab_tiling = 3: must divide per_device_batch_size * max_target",
        ),
    ],
)
def test_what_tiles_cannot_do_is_rejected(argv, expected):
    with pytest.raises(ConfigError) as error:
        rlax_config.load(resolve(tests.TINY, ["num_vocab_tiling=2", argv]))
    assert expected in str(error.value)
