"""``evaluate_objective``: numbers by hand, arrays that a config does not use, and errors."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest
from installs import on_path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Objective
from rlax_plugin.testing import evaluate_objective

MASK = [[1, 1, 0], [1, 0, 0]]
BEHAVIOUR = np.log([[0.2, 0.4, 1.0], [0.6, 1.0, 1.0]])
RATIOS = np.array([[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]])
LOGPROBS = BEHAVIOUR + np.log(RATIOS)
REFERENCE = LOGPROBS - np.array([[0.5, -0.25, 9.0], [1.0, 9.0, 9.0]])
SCALE = 1 / math.sqrt(2)  # (1 - 0.5) / std([1, 0], ddof 1)
NO_EPSILON = {"name": "group_normalised", "epsilon": 0.0}


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


def test_grpo_by_hand():
    # A = +-s, s = 1/sqrt 2. 1.5 is clipped (A > 0, above 1.2), 0.5 of the second sample as well
    # (A < 0, below 0.8): they count 1.2 and 0.8, without gradient. J = (1.2 + 0.5)/4 s - 0.8/2 s,
    # and d/dlogp of the token that is left is 0.5/4 s.
    found = evaluate({"preset": "grpo", "advantage": NO_EPSILON})
    np.testing.assert_allclose(found.advantages_bt, [[SCALE, SCALE, 0], [-SCALE, 0, 0]], rtol=1e-12)
    assert found.loss == pytest.approx(-SCALE / 40, rel=1e-6)
    np.testing.assert_allclose(found.grad_bt, [[0, -SCALE / 8, 0], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(found.weights_bt, [[0.25, 0.25, 0], [0.5, 0, 0]])
    np.testing.assert_allclose(found.ratio_bt, RATIOS, rtol=1e-6)
    assert found.metrics["objective/tokens"] == 3 and found.metrics["objective/sequences"] == 2
    assert found.metrics["objective/clip_fraction_high"] == pytest.approx(1 / 3)
    assert "objective/entropy" not in found.metrics


def test_a_name_a_mapping_and_an_objective_are_one():
    configs = ("grpo", {"preset": "grpo", "epochs": 4, "mini_batches": 3}, Objective(preset="grpo"))
    losses = {evaluate(config).loss for config in configs}
    assert len(losses) == 1 and losses != {0.0}


def test_float64_where_x64_is_on():
    with jax.enable_x64(True):
        found = evaluate({"preset": "grpo", "advantage": NO_EPSILON})
    assert found.grad_bt.dtype == np.float64
    assert found.loss == pytest.approx(-SCALE / 40, rel=1e-14)
    assert evaluate("grpo").grad_bt.dtype == np.float32


def test_overlong_punishment_takes_the_limit_that_is_given():
    # DAPO with L_max 3, L_c 2: lengths 2 and 1 are punished by 1/2 and 0, so that rewards of 1 and
    # 0.5 become equal. Where no limit is known, nobody is punished.
    config = {"preset": "dapo", "overlong": {"penalty": 1.0, "buffer_tokens": 2}}
    found = evaluate(config, rewards_b=[1.0, 0.5], max_new_tokens=3)
    np.testing.assert_array_equal(found.advantages_bt, 0)
    assert evaluate("dapo", rewards_b=[1.0, 0.5]).advantages_bt[0, 0] > 0
    with pytest.raises(ValueError, match="give max_new_tokens or overlong"):
        evaluate(config, rewards_b=[1.0, 0.5])
    found = evaluate(config, rewards_b=[1.0, 0.5], max_new_tokens=100)
    assert found.advantages_bt[0, 0] > 0


@pytest.mark.parametrize("reward", [-1e16, np.nan])
def test_a_reward_that_no_run_has_is_refused_by_name(reward):
    with pytest.raises(
        ValueError, match=r"rewards_b = .*expected finite numbers of at most 1e\+15"
    ):
        evaluate("grpo", rewards_b=[reward, 0.5])
    assert np.isfinite(evaluate("dr_grpo", rewards_b=[1e15, 0.5]).loss)


def test_the_proximal_policy_is_pi_theta_unless_it_is_given():
    config = {"preset": "grpo", "old_policy": "proximal"}
    np.testing.assert_array_equal(evaluate(config).ratio_bt, 1)
    proximal = BEHAVIOUR + np.log(RATIOS / 1.25)
    for old_policy in ("proximal", "reprefill"):
        config = {"preset": "grpo", "old_policy": old_policy}
        found = evaluate(config, proximal_logprobs_bt=proximal)
        np.testing.assert_allclose(found.ratio_bt[0], [1.25, 1.25, 1], rtol=1e-6)
        # 1.25 is above 1.2: the first sample, with A > 0, has no gradient.
        np.testing.assert_array_equal(found.grad_bt[0], 0)
        assert found.grad_bt[1, 0] == pytest.approx(1.25 * SCALE / 2, rel=1e-5)


def test_an_empty_mask_is_a_sample_without_a_score():
    whole = evaluate("grpo")
    wider = {
        "logprobs_bt": np.vstack([LOGPROBS, np.zeros((1, 3))]),
        "behaviour_logprobs_bt": np.vstack([BEHAVIOUR, np.zeros((1, 3))]),
        "mask_bt": [*MASK, [0, 0, 0]],
    }
    found = evaluate("grpo", **wider, rewards_b=[1.0, 0.0, math.nan], group_size=3)
    assert (found.loss, found.metrics) == (whole.loss, whole.metrics)
    np.testing.assert_array_equal(found.grad_bt, np.vstack([whole.grad_bt, np.zeros((1, 3))]))


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        ("grpo", {"logprobs_bt": [[0.0]]}, ValueError, r"logprobs_bt has shape \(1, 1\)"),
        ("grpo", {"rewards_b": [1.0]}, ValueError, r"rewards_b has shape \(1,\), expected \(2,\)"),
        ("grpo", {"group_size": 3}, ValueError, "2 samples are not groups of group_size = 3"),
        (
            {"preset": "grpo", "kl": {"coefficient": 0.1}},
            {},
            ValueError,
            "give reference_logprobs_bt",
        ),
        ({"preset": "grpo", "entropy_coefficient": 0.1}, {}, ValueError, "give entropy_bt"),
        ("grop", {}, ConfigError, "rlax.objective.preset = 'grop': .* did you mean 'grpo'"),
        ({"preset": "grpo", "agregation": {}}, {}, ConfigError, "did you mean 'aggregation'"),
        (
            {"preset": "grpo", "advantage": {"name": "group_normalised", "dof": 1}},
            {},
            ConfigError,
            "rlax.objective.advantage.dof = 1: unknown key; did you mean 'ddof'",
        ),
        (
            {"preset": "grpo", "corrections": [{"name": "truncated_importance_sampling"}]},
            {},
            ConfigError,
            "by the policy's ratio more than once",
        ),
    ],
    ids=lambda value: "" if isinstance(value, type | str) else None,
)
def test_errors_say_what_would_be_right(config, changes, error, message):
    with pytest.raises(error, match=message):
        evaluate(config, **changes)


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
    ],
)
def test_an_array_that_changes_nothing_is_rejected(array, without, said, using):
    with pytest.raises(ValueError, match=f"^{array} has no effect: .*") as error:
        evaluate(without, **{array: np.full((2, 3), 0.3)})
    assert said in str(error.value)
    rest = {} if using is not WITH_KL else {"reference_logprobs_bt": REFERENCE}
    evaluate(using, **{array: np.full((2, 3), 0.3)} | rest)


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


def test_jit_computes_the_same():
    with jax.enable_x64(True):
        eager = evaluate(WITH_KL, reference_logprobs_bt=REFERENCE)
        compiled = evaluate(WITH_KL, reference_logprobs_bt=REFERENCE, jit=True)
    assert compiled.loss == pytest.approx(eager.loss, rel=1e-12) and eager.loss != 0
    for array in ("grad_bt", "weights_bt", "ratio_bt", "kl_bt"):
        found, expected = getattr(compiled, array), getattr(eager, array)
        assert found.dtype == expected.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert compiled.metrics == pytest.approx(eager.metrics, rel=1e-11)
    # k3 = exp(-d) + d - 1 of d = log pi - log pi_ref = 0.5, -0.25 and 1.
    k3 = [[math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25, 0], [math.exp(-1), 0, 0]]
    np.testing.assert_allclose(eager.kl_bt, k3, rtol=1e-12)
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
