"""MaxText's model as signals see it: outputs of its own graph, and weights that were kept."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compilations
from flax import nnx
from rlax_maxtext.model_view import MaxTextView
from tiny_loop import LENGTH, ROWS, configure, policy_gradient
from tiny_loop import batch as batch_that_trains

from maxtext_overrides.kept_positions import logits_per_row
from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from maxtext_overrides.variables import restore
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.training.objective.batches import ARRAYS

TEMPERATURE = 0.7
KEY = "rlax.objective.reference.path"


def batch(step):
    """A batch that says which tokens were sampled: those that train."""
    data = batch_that_trains(step)
    return data | {"rl_group": data["rl_mask"].astype(np.int32)}


def sampled(data, array_bt):
    """What a view shows of an array: MaxText's gives 0 where nothing was sampled."""
    return np.where(data["rl_group"] > 0, array_bt, 0.0)


def compiled_logits(graph):
    def logits_btv(model_state, data):
        return nnx.merge(graph, model_state, copy=True)(
            decoder_input_tokens=data["inputs"],
            decoder_positions=data["inputs_position"],
            decoder_segment_ids=data["inputs_segmentation"],
            enable_dropout=False,
        )

    return jax.jit(logits_btv)


def logprobs(seen, weights, data):
    """log softmax of the model's own logits for the whole batch at once, in float64."""
    with seen.loop.shardings():
        logits_btv = seen.logits(restore(seen.loop.model_state, weights), data)
    scaled_btv = np.asarray(logits_btv, np.float64) / TEMPERATURE
    log_z_bt = np.log(np.exp(scaled_btv).sum(-1))
    logits_bt = np.take_along_axis(scaled_btv, data["targets"][..., None], -1)[..., 0]
    return sampled(data, logits_bt - log_z_bt)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a signal sees in two steps; the batch is scored in two parts."""
    directory = tmp_path_factory.mktemp("view")
    config = configure(
        directory,
        f"rlax.rollouts.temperature={TEMPERATURE}",
        "vocab_size=512",
        enable_checkpointing=True,
        per_device_batch_size=4,
        gradient_accumulation_steps=2,
        steps=2,
    )
    stored = directory / "reference"
    stored.mkdir()  # as a killed start may leave it
    (stored / "half").write_text("written")
    assert logits_per_row(config) == LENGTH // 2
    model = MaxTextView(config, TEMPERATURE)
    seen = SimpleNamespace(model=model, weights={}, outputs={}, kept={}, rejections={})

    def rejection(name, loop, path):
        model.show(loop)
        with pytest.raises(ConfigError) as error:
            model.load(str(path), KEY)
        seen.rejections[name] = str(error.value)

    def on_start(loop):
        seen.loop, seen.logits = loop, compiled_logits(loop.graph)
        seen.weights[0] = fresh_weights(loop)
        model.show(loop)
        seen.kept = {f"offload={offload}": model.keep(offload=offload) for offload in (False, True)}
        model.save(str(stored))
        seen.kept["stored"] = model.load(str(stored), KEY)
        rejection("nowhere", loop, directory / "nowhere")
        doubled = jax.tree.map(lambda array: jnp.stack([array, array]), loop.model_state)
        rejection("shapes", dataclasses.replace(loop, model_state=doubled), stored)

    def batches(step):
        model.show(seen.loop)
        data = batch(step)
        for name, weights in (seen.kept | {"present": None}).items():
            found = model.forward(data, "logprobs", weights=weights)
            seen.outputs[step, name] = found["logprobs"]
        if step == 2:
            seen.all_outputs = model.forward(data, *model.outputs)
        return data

    def on_step_end(loop, metrics):
        seen.weights[loop.completed] = fresh_weights(loop)

    events = Events(batches=batches, on_step_end=on_step_end, on_start=on_start)
    with compilations() as seen.compiled:
        run_train_loop(config, events, arrays=ARRAYS, objective=policy_gradient)
    return seen


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_kept_and_stored_weights_stay_those_of_their_version(seen):
    for step in (1, 2):
        data = batch(step)
        first_bt = logprobs(seen, seen.weights[0], data)
        for name in seen.kept:
            close(seen.outputs[step, name], first_bt)
    present_bt = seen.outputs[2, "present"]
    close(present_bt, logprobs(seen, seen.weights[1], batch(2)))
    assert np.abs(present_bt - first_bt).max() > 0.01  # the update's work
    # One program for any weights and both parts of a batch; another one gives all outputs.
    assert sum("outputs_of_batch" in name for name in seen.compiled) == 2


def test_outputs_are_those_of_the_models_own_graph(seen):
    data, found = batch(2), seen.all_outputs
    close(found["logprobs"], logprobs(seen, seen.weights[1], data))
    # The output head: features times the tied embedding, over the root of its width.
    table_ve = np.asarray(seen.weights[1]["token_embedder.embedding"], np.float64)
    logits_btv = found["features"].astype(np.float64) @ table_ve.T / np.sqrt(table_ve.shape[1])
    scaled_btv = logits_btv / TEMPERATURE
    log_p_btv = scaled_btv - np.log(np.exp(scaled_btv).sum(-1, keepdims=True))
    chosen_bt = np.take_along_axis(log_p_btv, data["targets"][..., None], -1)[..., 0]
    entropy_bt = -(np.exp(log_p_btv) * log_p_btv).sum(-1)
    for name, expected_bt in {"logprobs": chosen_bt, "entropy": entropy_bt}.items():
        np.testing.assert_allclose(
            found[name], sampled(data, expected_bt), rtol=1e-5, atol=1e-5, err_msg=name
        )
    for name, spec in seen.model.outputs.items():
        assert not spec.mismatch(found[name], ROWS, LENGTH)


def test_weights_that_cannot_be_used_are_a_config_error(seen):
    assert all(text.startswith(f"{KEY} = ") for text in seen.rejections.values())
    assert "nowhere" in seen.rejections["nowhere"]
    assert "but the model expects (2, " in seen.rejections["shapes"]
