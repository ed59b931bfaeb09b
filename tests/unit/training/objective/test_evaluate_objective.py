"""``evaluate_objective``: numbers by hand, the way of a real run, and its errors."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import KL, Objective
from rlax_plugin.testing import evaluate_objective
from rlax_plugin.training.objective.loss import kl_token_rewards

MASK = [[1, 1, 0], [1, 0, 0]]
BEHAVIOUR = np.log([[0.2, 0.4, 1.0], [0.6, 1.0, 1.0]])
RATIOS = np.array([[1.5, 0.5, 1.0], [0.5, 1.0, 1.0]])
SCALE = 1 / math.sqrt(2)  # (1 - 0.5) / std([1, 0], ddof 1)
NO_EPSILON = {"name": "group_normalised", "epsilon": 0.0}


def arguments(**changes):
    """Two samples of one group, lengths 2 and 1."""
    arguments = {
        "logprobs_bt": BEHAVIOUR + np.log(RATIOS),
        "behaviour_logprobs_bt": BEHAVIOUR,
        "rewards_b": [1.0, 0.0],
        "mask_bt": MASK,
        "group_size": 2,
    }
    return arguments | changes


def test_grpo_by_hand():
    # A = +-s, s = 1/sqrt 2. 1.5 is clipped (A > 0, above 1.2), 0.5 of the second sample as well
    # (A < 0, below 0.8): they count 1.2 and 0.8, without gradient. J = (1.2 + 0.5)/4 s - 0.8/2 s,
    # and d/dlogp of the token that is left is 0.5/4 s.
    found = evaluate_objective({"preset": "grpo", "advantage": NO_EPSILON}, **arguments())
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
    losses = {evaluate_objective(config, **arguments()).loss for config in configs}
    assert len(losses) == 1 and losses != {0.0}


def test_float64_where_x64_is_on():
    with jax.enable_x64(True):
        found = evaluate_objective({"preset": "grpo", "advantage": NO_EPSILON}, **arguments())
    assert found.grad_bt.dtype == np.float64
    assert found.loss == pytest.approx(-SCALE / 40, rel=1e-14)
    assert evaluate_objective("grpo", **arguments()).grad_bt.dtype == np.float32


def test_overlong_punishment_takes_the_limit_that_is_given():
    # DAPO with L_max 3, L_c 2: lengths 2 and 1 are punished by 1/2 and 0, so that rewards of 1 and
    # 0.5 become equal. Where no limit is known, nobody is punished.
    config = {"preset": "dapo", "overlong": {"penalty": 1.0, "buffer_tokens": 2}}
    found = evaluate_objective(config, **arguments(rewards_b=[1.0, 0.5], max_new_tokens=3))
    np.testing.assert_array_equal(found.advantages_bt, 0)
    assert evaluate_objective("dapo", **arguments(rewards_b=[1.0, 0.5])).advantages_bt[0, 0] > 0
    with pytest.raises(ValueError, match="give max_new_tokens or overlong"):
        evaluate_objective(config, **arguments(rewards_b=[1.0, 0.5]))
    found = evaluate_objective(config, **arguments(rewards_b=[1.0, 0.5], max_new_tokens=100))
    assert found.advantages_bt[0, 0] > 0


@pytest.mark.parametrize("reward", [1e200, -1e16, np.inf, np.nan])
def test_a_reward_that_no_run_has_is_refused_by_name(reward):
    with pytest.raises(
        ValueError, match=r"rewards_b = .*expected finite numbers of at most 1e\+15"
    ):
        evaluate_objective("grpo", **arguments(rewards_b=[reward, 0.5]))
    assert np.isfinite(evaluate_objective("dr_grpo", **arguments(rewards_b=[1e15, 0.5])).loss)


def test_the_proximal_policy_is_pi_theta_unless_it_is_given():
    config = {"preset": "grpo", "old_policy": "proximal"}
    np.testing.assert_array_equal(evaluate_objective(config, **arguments()).ratio_bt, 1)
    proximal = BEHAVIOUR + np.log(RATIOS / 1.25)
    for old_policy in ("proximal", "reprefill"):
        config = {"preset": "grpo", "old_policy": old_policy}
        found = evaluate_objective(config, **arguments(proximal_logprobs_bt=proximal))
        np.testing.assert_allclose(found.ratio_bt[0], [1.25, 1.25, 1], rtol=1e-6)
        # 1.25 is above 1.2: the first sample, with A > 0, has no gradient.
        np.testing.assert_array_equal(found.grad_bt[0], 0)
        assert found.grad_bt[1, 0] == pytest.approx(1.25 * SCALE / 2, rel=1e-5)


def test_kl_in_the_reward_by_hand():
    # K1 = log mu - log pi_ref: 0.5 and 0.25, then 1; beta 0.4: rewards 1 - 0.3 and 1 - 0.4.
    # Centred: +-0.05.
    reference = BEHAVIOUR - np.array([[0.5, 0.25, 9.0], [1.0, 9.0, 9.0]])
    found = evaluate_objective(
        {
            "preset": "grpo",
            "advantage": {"name": "group_normalised", "scale_by_std": False},
            "kl": {"coefficient": 0.4, "estimator": "k1", "placement": "reward"},
        },
        **arguments(rewards_b=[1, 1], reference_logprobs_bt=reference),
    )
    np.testing.assert_allclose(found.advantages_bt, [[0.05, 0.05, 0], [-0.05, 0, 0]], atol=1e-15)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    # d = log 2 and -log 2: k3 = exp(-d) + d - 1.
    [
        ("k1", [math.log(2), -math.log(2)]),
        ("k2", [math.log(2) ** 2 / 2] * 2),
        ("k3", [math.log(2) - 0.5, 1 - math.log(2)]),
    ],
)
def test_token_rewards_by_hand(estimator, expected):
    kl = KL(coefficient=0.5, estimator=estimator)
    behaviour = np.float32([[math.log(0.5), math.log(0.25), np.nan]])
    reference = np.float32([[math.log(0.25), math.log(0.5), np.inf]])
    found = kl_token_rewards(kl, behaviour, reference, np.array([[1, 1, 0]]))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, [[*(-0.5 * np.array(expected)), 0]], rtol=1e-6)


def test_the_entropy_bonus_by_hand():
    # Equal rewards: the bonus alone, c sum_t weight H = 0.2 * (0.25 * 1 + 0.25 * 2 + 0.5 * 3).
    found = evaluate_objective(
        {"preset": "grpo", "entropy_coefficient": 0.2},
        **arguments(rewards_b=[1, 1], entropy_bt=[[1.0, 2.0, 7.0], [3.0, 7.0, 7.0]]),
    )
    assert found.loss == pytest.approx(-0.2 * 2.25, rel=1e-6)
    assert found.metrics["objective/entropy"] == pytest.approx(2.0)


def test_an_empty_mask_is_a_sample_without_a_score():
    whole = evaluate_objective("grpo", **arguments())
    wider = {
        "logprobs_bt": np.vstack([BEHAVIOUR + np.log(RATIOS), np.zeros((1, 3))]),
        "behaviour_logprobs_bt": np.vstack([BEHAVIOUR, np.zeros((1, 3))]),
        "mask_bt": [*MASK, [0, 0, 0]],
    }
    found = evaluate_objective(
        "grpo", **arguments(**wider, rewards_b=[1.0, 0.0, math.nan], group_size=3)
    )
    assert (found.loss, found.metrics) == (whole.loss, whole.metrics)
    np.testing.assert_array_equal(found.grad_bt, np.vstack([whole.grad_bt, np.zeros((1, 3))]))


def test_nothing_to_train_on_is_a_loss_of_0():
    found = evaluate_objective("dapo", **arguments(mask_bt=np.zeros((2, 3))))
    assert found.loss == 0
    np.testing.assert_array_equal(found.grad_bt, 0)
    np.testing.assert_array_equal(found.advantages_bt, 0)


@pytest.mark.parametrize(
    ("config", "changes", "error", "message"),
    [
        ("grpo", {"logprobs_bt": [[0.0]]}, ValueError, r"logprobs_bt has shape \(1, 1\)"),
        ("grpo", {"mask_bt": [1, 1]}, ValueError, r"mask_bt has shape \(2,\), expected \[samples"),
        ("grpo", {"values_bt": [[0.0]]}, ValueError, r"values_bt has shape"),
        ("grpo", {"rewards_b": [1.0]}, ValueError, r"rewards_b has shape \(1,\), expected \(2,\)"),
        ("grpo", {"rewards_b": [1.0, math.nan]}, ValueError, "finite"),
        ("grpo", {"group_size": 3}, ValueError, "2 samples are not groups of group_size = 3"),
        ("grpo", {"group_size": 0}, ValueError, "group_size = 0"),
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
        evaluate_objective(config, **arguments(**changes))
