"""A term that signals add to the loss, on features with gradient: exact with accumulation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from rlax_maxtext.model_view import MaxTextView
from tiny_loop import batch, configure

from maxtext_overrides.trainer.train_loop import Events, fresh_weights, run_train_loop
from rlax_plugin.api import LossTerm, loss_weight, make_loss, scale_names, whole_update
from rlax_plugin.config import Algorithm
from rlax_plugin.training.objective.batches import ARRAYS
from rlax_plugin.training.objective.diagnostics import summarise
from rlax_plugin.training.objective.loss import ObjectiveSlots

# The objective weighs samples, 4 in each half of the rows; the term weighs tokens, 10 and 26.
SLOTS = ObjectiveSlots(
    aggregation=lambda inputs: (inputs.mask_bt, inputs.sequence_count()),
    advantages=lambda outcomes: outcomes.totals_n,
    importance_weight=lambda inputs: jnp.ones_like(inputs.mask_bt),
    grad_1=lambda inputs: inputs.logprobs_bt,
    grad_2=lambda inputs: jnp.zeros_like(inputs.mask_bt),
    corrections=(),
    algorithm=Algorithm(),
)


def pull(outputs, data):
    """Half of the squared distance of the features from 1."""
    apart_bte = outputs.further["features"] - 1.0
    return jnp.where(data["rl_mask"] > 0, 0.5 * (apart_bte**2).mean(-1), 0.0).sum()


TERMS = {"pull": LossTerm(pull, lambda data: data["rl_mask"].sum(), ("features",))}


def run(tmp_path, terms, *argv):
    """One step; the weights before and after, what it reports, and the features before it."""
    config = configure(tmp_path, "opt_type=sgd", *argv)
    weights, found = {}, {}

    def publish(loop):
        weights[loop.completed] = jax.device_get(fresh_weights(loop))

    def on_start(loop):
        publish(loop)
        model = MaxTextView(config, 1.0)
        model.show(loop)
        found.update(model.forward(batch(1), "features"))

    def on_step_end(loop, metrics):
        publish(loop)
        found.update(jax.device_get(metrics))

    events = Events(
        batches=batch,
        on_step_end=on_step_end,
        on_start=on_start,
        decide=lambda step: (False, True),
        update=lambda arrays: whole_update(terms, arrays, partial(loss_weight, SLOTS)),
        update_arrays=dict.fromkeys(scale_names(terms), ARRAYS["rl_advantages"]),
    )
    outputs = {name for term in terms.values() for name in term.outputs}
    loss = make_loss(SLOTS, terms)
    run_train_loop(config, events, arrays=ARRAYS, objective=loss, outputs=outputs)
    return weights, found


def test_a_term_moves_the_weights_alike_however_the_batch_is_cut(tmp_path):
    halves = ("gradient_accumulation_steps=2", "per_device_batch_size=4")
    plain, _ = run(tmp_path / "plain", {})
    whole, reported = run(tmp_path / "whole", TERMS)
    cut, cut_reported = run(tmp_path / "cut", TERMS, *halves)
    trained_bt = batch(1)["rl_mask"] > 0
    expected = 0.5 * ((reported["features"][trained_bt] - 1.0) ** 2).mean()
    for metrics in (reported, cut_reported):
        found = summarise(metrics)["objective/pull"]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    moved = 0.0
    for name, first in plain[0].items():
        step, cut_step = whole[1][name] - first, cut[1][name] - first
        np.testing.assert_allclose(cut_step, step, rtol=1e-3, atol=1e-7, err_msg=name)
        moved = max(moved, np.abs(step - (plain[1][name] - first)).max())
    assert moved > 1e-5
