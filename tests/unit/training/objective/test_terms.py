"""Terms beside the objective: added exactly, in micro-batches as well, and reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_harness import data_of, modes, slots_of

from rlax_plugin.api import LossTerm, loss_weight, make_loss, scale_names, whole_update
from rlax_plugin.base.errors import PluginError
from rlax_plugin.training.objective.diagnostics import summarise
from rlax_plugin.training.objective.loss import TokenOutputs

MASK = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]
LOGPROBS = np.log(np.array([[0.5, 0.25, 0.9], [0.5, 0.9, 0.9], [0.5, 0.5, 0.25]], np.float32))
SLOTS = slots_of("grpo")  # weighs samples: 1/2, 1/2; 1; 1/3, 1/3, 1/3


def squared(outputs, data):
    """The teacher says -1 nat of each token."""
    apart_bt = outputs.logprobs_bt + 1.0
    return jnp.where(data["rl_mask"] > 0, apart_bt**2, 0.0).sum()


TERMS = {
    "teacher": LossTerm(squared, lambda data: data["rl_mask"].sum()),
    "entropy_bonus": LossTerm(
        lambda outputs, data: -0.5 * jnp.where(data["rl_mask"] > 0, outputs.entropy_bt, 0.0).sum(),
        lambda data: 4.0,
    ),
}


def batch():
    return data_of(MASK, [[1.0], [-2.0], [0.5]], LOGPROBS)


def outputs_of(logprobs_bt):
    return TokenOutputs(logprobs_bt, jnp.full(logprobs_bt.shape, 2.0))


@modes
def test_each_term_adds_its_sum_over_its_weight(mode):
    def loss_of(terms):
        loss = make_loss(SLOTS, terms)

        def mean(logprobs_bt):
            loss_sum, weight, metrics = loss(outputs_of(logprobs_bt), batch())
            return loss_sum / jnp.maximum(weight, 1), metrics

        return mode(jax.value_and_grad(mean, has_aux=True))(jnp.asarray(LOGPROBS))

    (plain, sums), grad_bt = loss_of({})
    (found, metrics), found_grad_bt = loss_of(TERMS)
    # log .5 + 1 = .306853 four times and log .25 + 1 = -.386294 twice, of 6 tokens.
    teacher = (4 * 0.306853**2 + 2 * 0.386294**2) / 6
    assert found - plain == pytest.approx(teacher - 0.5 * 6 * 2.0 / 4, rel=1e-5)
    expected_bt = 2 * (LOGPROBS + 1) / 6 * np.array(MASK)
    np.testing.assert_allclose(found_grad_bt - grad_bt, expected_bt, rtol=1e-4, atol=1e-7)
    report, without = summarise(metrics), summarise(sums)
    assert report.pop("objective/teacher") == pytest.approx(teacher, rel=1e-5)
    assert report.pop("objective/entropy_bonus") == pytest.approx(-1.5)
    assert report == pytest.approx(without, nan_ok=True)


def test_micro_batches_give_the_same_with_the_weights_of_the_whole_update():
    whole = batch()
    loss = make_loss(SLOTS, TERMS)
    expected, weight, _ = loss(outputs_of(LOGPROBS), whole)
    update = whole_update(TERMS, whole, lambda data: loss_weight(SLOTS, data))
    assert set(update) - set(whole) == set(scale_names(TERMS))
    # 3 samples; 6 tokens, and 4.
    assert update["term_scale/teacher"][0, 0] == 0.5
    assert update["term_scale/entropy_bonus"][0, 0] == 0.75
    found, weights = 0.0, 0.0
    for rows in (slice(0, 2), slice(2, 3)):
        part = {name: array[rows] for name, array in update.items()}
        one = loss(outputs_of(LOGPROBS[rows]), part)
        found, weights = found + one[0], weights + one[1]
    assert weights == weight == 3
    assert float(found) == pytest.approx(float(expected), rel=1e-6)


def test_a_batch_without_trained_tokens_reports_no_term():
    data = batch()
    data["rl_mask"] = data["rl_mask"] * 0
    terms = {"teacher": TERMS["teacher"]}
    loss_sum, weight, metrics = make_loss(SLOTS, terms)(outputs_of(LOGPROBS), data)
    assert loss_sum == weight == 0
    assert "objective/teacher" not in summarise(metrics)


@pytest.mark.parametrize(
    ("name", "term", "expected"),
    [
        ("ratio", TERMS["teacher"], "is named 'ratio', as a metric of the objective"),
        ("tokens", TERMS["teacher"], "is named 'tokens', as a metric of the objective"),
        (
            "each",
            LossTerm(lambda outputs, data: outputs.logprobs_bt, lambda data: 1.0),
            r"the sum of the loss's term 'each' has shape \[3, 3\], expected a number",
        ),
    ],
)
def test_what_is_no_term_is_rejected(name, term, expected):
    with pytest.raises(PluginError, match=expected):
        make_loss(SLOTS, {name: term})(outputs_of(LOGPROBS), batch())
