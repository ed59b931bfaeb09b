"""``evaluate_objective``: arrays that a config does not use, jit, KL and returns per token."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from installs import on_path

from rlax_plugin.testing import evaluate_objective

MASK = [[1, 1, 0], [1, 0, 0]]
BEHAVIOUR = np.log([[0.2, 0.4, 1.0], [0.6, 1.0, 1.0]])
LOGPROBS = BEHAVIOUR + np.log([[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]])
REFERENCE = LOGPROBS - np.array([[0.5, -0.25, 9.0], [1.0, 9.0, 9.0]])
CENTRED = {"name": "group_normalised", "scale_by_std": False}


def evaluate(config, **changes):
    """Two samples of one group, lengths 2 and 1."""
    arguments = {
        "logprobs_bt": LOGPROBS,
        "behaviour_logprobs_bt": BEHAVIOUR,
        "rewards_b": [1.0, 0.0],
        "mask_bt": MASK,
        "group_size": 2,
    }
    return evaluate_objective(config, **arguments | changes)


WITH_KL = {"preset": "grpo", "kl": {"coefficient": 0.1}}


@pytest.mark.parametrize(
    ("array", "without", "said", "using"),
    [
        ("reference_logprobs_bt", "grpo", "kl: {coefficient: 0.04}", WITH_KL),
        (
            "proximal_logprobs_bt",
            "grpo",
            "old_policy: proximal",
            {"preset": "grpo", "old_policy": "proximal"},
        ),
        ("proximal_logprobs_bt", WITH_KL, "old_policy: proximal", "decoupled_ppo"),
        ("values_bt", "grpo", "advantage: {name: gae}", "ppo"),
        ("values_bt", "reinforce_plus_plus", "advantage: {name: gae}", "ppo"),
    ],
)
def test_an_array_that_changes_nothing_is_rejected(array, without, said, using):
    with pytest.raises(ValueError, match=f"^{array} has no effect: .*") as error:
        evaluate(without, **{array: np.full((2, 3), 0.3)})
    assert said in str(error.value)
    rest = {} if using is not WITH_KL else {"reference_logprobs_bt": REFERENCE}
    evaluate(using, **{array: np.full((2, 3), 0.3)} | rest)


def test_two_arrays_too_many_are_named_together():
    many = {"reference_logprobs_bt": REFERENCE, "values_bt": REFERENCE}
    with pytest.raises(ValueError, match=r"(?s)reference_logprobs_bt .*values_bt has no effect"):
        evaluate("grpo", **many)


def test_values_that_are_all_equal_are_used_by_generalised_advantages():
    # Whitening takes a constant away: the advantages are those of no values at all.
    found = evaluate("ppo", values_bt=np.ones((2, 3)))
    np.testing.assert_allclose(found.advantages_bt, evaluate("ppo").advantages_bt, atol=1e-12)


SLOTS = """
from rlax_plugin.api import Extension, NoOptions, hookimpl


def bold(inputs):
    return inputs.entropy_bt * (inputs.advantages_bt > 0)


@hookimpl
def rlax_register_gradient_term():
    return {"bold": Extension(NoOptions, lambda config, context: bold)}
"""


@pytest.fixture
def own(tmp_path: Path):
    (tmp_path / "slots_of_ones_own.py").write_text(SLOTS)
    with on_path(tmp_path):
        yield {"plugins": ("rlax_objectives", "slots_of_ones_own")}


def test_entropies_that_a_slot_of_ones_own_reads_are_used(own):
    config = {"preset": "grpo", "grad_1": {"name": "none"}, "grad_2": {"name": "bold"}}
    found = evaluate(config, entropy_bt=[[2.0, 4.0, 9.0], [5.0, 9.0, 9.0]], **own)
    assert found.loss == pytest.approx(-(2 + 4) / 4)
    assert found.metrics["objective/entropy"] == pytest.approx(11 / 3)
    assert "objective/entropy" not in evaluate("grpo").metrics


@pytest.mark.parametrize("x64", [False, True])
def test_jit_computes_the_same(x64):
    with jax.enable_x64(x64):
        config = {"preset": "grpo", "kl": {"coefficient": 0.1}}
        eager = evaluate(config, reference_logprobs_bt=REFERENCE)
        compiled = evaluate(config, reference_logprobs_bt=REFERENCE, jit=True)
    tolerance = 1e-12 if x64 else 2e-6
    assert compiled.loss == pytest.approx(eager.loss, rel=tolerance) and eager.loss != 0
    for array in ("grad_bt", "weights_bt", "ratio_bt"):
        found, expected = getattr(compiled, array), getattr(eager, array)
        assert found.dtype == expected.dtype == (np.float64 if x64 else np.float32)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert compiled.metrics == pytest.approx(eager.metrics, rel=10 * tolerance)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # d = log pi - log pi_ref = 0.5, -0.25 and 1.
    [
        ("k1", [0.5, -0.25, 1.0]),
        ("k2", [0.125, 0.03125, 0.5]),
        ("k3", [math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25, math.exp(-1)]),
    ],
)
def test_kl_per_token_by_hand(estimator, expected):
    config = {"preset": "grpo", "kl": {"coefficient": 0.1, "estimator": estimator}}
    found = evaluate(config, reference_logprobs_bt=REFERENCE)
    assert found.kl_bt.dtype == np.float64
    np.testing.assert_allclose(found.kl_bt, [[*expected[:2], 0], [expected[2], 0, 0]], rtol=1e-12)
    assert evaluate("grpo").kl_bt is None


def test_kl_per_token_is_the_samplers_where_it_is_paid_with_the_reward():
    config = {
        "preset": "reinforce_plus_plus",
        "kl": {"coefficient": 0.4, "estimator": "k1", "placement": "reward"},
    }
    reference = BEHAVIOUR - np.array([[0.5, 0.25, 9.0], [1.0, 9.0, 9.0]])
    found = evaluate(config, reference_logprobs_bt=reference)
    np.testing.assert_allclose(found.kl_bt, [[0.5, 0.25, 0], [1.0, 0, 0]], rtol=1e-12)
    # R = 1 and 0, less 0.4 KL of this token and of those behind it.
    np.testing.assert_allclose(found.returns_bt, [[0.7, 0.9, 0], [-0.4, 0, 0]], rtol=1e-12)


def test_returns_are_shaped_rewards_without_baseline_and_std():
    np.testing.assert_array_equal(evaluate("grpo").returns_bt, [[1, 1, 0], [0, 0, 0]])
    # DAPO with L_max 3 and L_c 2: a length of 2 loses 1/2.
    config = {"preset": "dapo", "overlong": {"penalty": 1.0, "buffer_tokens": 2}}
    found = evaluate(config, rewards_b=[1.0, 0.25], max_new_tokens=3)
    np.testing.assert_allclose(found.returns_bt, [[0.5, 0.5, 0], [0.25, 0, 0]])
    # Without a limit no sample is overlong; an empty mask is a sample without a reward.
    found = evaluate("dapo", rewards_b=[1.0, math.nan], mask_bt=[[1, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.returns_bt, [[1, 1, 0], [0, 0, 0]])


def test_returns_less_values_are_generalised_advantages_before_whitening():
    values = np.array([[0.25, 0.5, 7.0], [0.125, 7.0, 7.0]])
    config = {"preset": "ppo", "advantage": {"whiten_over": "none"}}
    found = evaluate(config, values_bt=values)
    mask = np.array(MASK)
    np.testing.assert_allclose(found.advantages_bt, (found.returns_bt - values) * mask, atol=1e-12)


def test_kl_in_the_loss_is_multiplied_by_the_corrections():
    # Equal rewards: KL alone. K1's gradient is 1, beta 0.1, weights 1/4, 1/4, 1/2; corrected by
    # min(m, 2) with m = pi_prox/mu = 3, 0.5 and 1.
    ratios = np.array([[3.0, 0.5, 1.0], [1.0, 1.0, 1.0]])
    config = {
        "preset": "grpo",
        "advantage": CENTRED,
        "old_policy": "proximal",
        "corrections": [{"name": "truncated_importance_sampling"}],
        "kl": {"coefficient": 0.1, "estimator": "k1"},
    }
    found = evaluate(
        config,
        rewards_b=[1, 1],
        reference_logprobs_bt=REFERENCE,
        proximal_logprobs_bt=BEHAVIOUR + np.log(ratios),
    )
    expected = [[0.1 * 2 / 4, 0.1 * 0.5 / 4, 0], [0.1 / 2, 0, 0]]
    np.testing.assert_allclose(found.grad_bt, expected, rtol=1e-6)
