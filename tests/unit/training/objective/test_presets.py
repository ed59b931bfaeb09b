"""Published algorithms, with numbers worked out by hand.

The example of ``objective_harness``: tokens a, b of a sample with reward 1, and c, d, e of one with
reward 0; ratios r = pi/mu = 6, 0.1 and 0.6, 4, 0.25; L_max = 4. ``h`` is sqrt(1/2).

Advantages of the two samples:
- R - mean = 1/2, -1/2; the std with ddof 1 is h, so that (R - mean)/std = h, -h.
- Leave one out: 1 - 0 = 1 and 0 - 1 = -1.
- Length-weighted baseline (2 * 1 + 3 * 0)/5 = 0.4: 0.6, -0.4.
- Whitened over tokens 1 1 0 0 0: mean 0.4, variance (2 * 0.36 + 3 * 0.16)/(5 - 1) = 0.3, so that
  P = 0.6/sqrt(0.3), -Q = -0.4/sqrt(0.3). A group mean taken first only shifts the tokens: the same.

Clipped with lo = hi = 0.2: a (A > 0, 6 > 1.2) counts 1.2 and c (A < 0, 0.6 < 0.8) and e count 0.8,
without gradient; b stays 0.1, d stays 4. Products are 0.6 and 0.6.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_harness import (
    BEHAVIOUR,
    LENGTHS,
    LOGPROBS,
    MASK,
    PRESETS,
    advantages_of,
    data_of,
    differentiated,
    jit,
    modes,
    slots_of,
    tokens,
)

from rlax_plugin.testing.objectives import evaluate_objective
from rlax_plugin.training.objective.loss import kl_estimate

h = math.sqrt(0.5)
P, Q = 0.6 / math.sqrt(0.3), 0.4 / math.sqrt(0.3)
s = math.sqrt(0.6)
LOG_PI = tokens(LOGPROBS)

# preset -> advantages, dJ/dlogp of a .. e, J (None where the term is log pi: then it is the sum of
# dJ/dlogp * log pi), weight.
BY_HAND = {
    # J = 1/2 h (1.2 + 0.1) - 1/3 h (0.8 + 4 + 0.8); agg is 1/2 on a, b and 1/3 on c, d, e.
    "grpo": ((h, -h), (0, h / 20, 0, -4 * h / 3, 0), 1.3 / 2 * h - 5.6 / 3 * h, 2),
    # agg 1/4: J = (1.3 / 2 - 5.6 / 2) / 4.
    "dr_grpo": ((0.5, -0.5), (0, 0.0125, 0, -0.5, 0), -0.5375, 2),
    # agg 1, hi 0.28: J = (1.28 + 0.1) h - 5.6 h.
    "dapo": ((h, -h), (0, 0.1 * h, 0, -4 * h, 0), -4.22 * h, 5),
    # s = 0.6^(1/2) = 0.775 < 1.0004 stays; its gradient is h s/2 at a and b. The second is
    # 0.6^(1/3) = 0.843 < 0.9997 with A < 0: clipped, J = h s - 0.9997 h.
    "gspo": ((h, -h), (h * s / 2, h * s / 2, 0, 0, 0), h * s - 0.9997 * h, 2),
    "gspo_token": ((h, -h), (h * s / 2, h * s / 2, 0, 0, 0), h * s - 0.9997 * h, 2),
    # Weights min(r, 5) = 5, 0.1, 0.6, 4, 0.25.
    "cispo": ((h, -h), (5 * h, 0.1 * h, -0.6 * h, -4 * h, -0.25 * h), None, 5),
    # Weights min(r, 2) = 2, 0.1, 0.6, 2, 0.25, times 1/2/2 and -1/2/3.
    "aipo": ((0.5, -0.5), (0.5, 0.025, -0.1, -1 / 3, -1 / 24), None, 2),
    "rloo": ((1, -1), (1, 1, -1, -1, -1), None, 2),
    # r / 4 times 1/2, -1/2.
    "reinforce": ((0.5, -0.5), (0.75, 0.0125, -0.075, -0.5, -0.03125), None, 2),
    "reinforce_plus_plus": ((P, -Q), (0, P / 20, 0, -4 * Q / 3, 0), 1.3 / 2 * P - 5.6 / 3 * Q, 2),
    "reinforce_plus_plus_baseline": (
        (P, -Q),
        (0, P / 20, 0, -4 * Q / 3, 0),
        1.3 / 2 * P - 5.6 / 3 * Q,
        2,
    ),
    "opo": ((0.6, -0.4), (0.6, 0.6, -0.4, -0.4, -0.4), None, 5),
    # The second sequence's ratio is 0.6 * 4 * 0.25 = 0.6 < 1; the first has A > 0: 1.
    "topr": ((0.5, -0.5), (0.5, 0.5, -0.3, -0.3, -0.3), None, 2),
    # d is clipped as well, A < 0 and 4 > 3, and counts 3: J = 1.3 P - (0.8 + 3 + 0.8) Q.
    "ppo": ((P, -Q), (0, 0.1 * P, 0, 0, 0), 1.3 * P - 4.6 * Q, 5),
    # One update: pi_prox is pi_theta, u = 1, M = 1. Weights min(pi_prox/mu, 5) = 5, 0.1, 0.6, 4,
    # 0.25: J = 5.1 P - 4.85 Q.
    "decoupled_ppo": (
        (P, -Q),
        (5 * P, 0.1 * P, -0.6 * Q, -4 * Q, -0.25 * Q),
        5.1 * P - 4.85 * Q,
        5,
    ),
    "behaviour_cloning": ((1, 1), (1, 1, 1, 1, 1), None, 5),
    # exp(1 - 1/2) and exp(0 - 1/2).
    "awr": (
        (math.exp(0.5), math.exp(-0.5)),
        (math.exp(0.5),) * 2 + (math.exp(-0.5),) * 3,
        None,
        5,
    ),
}


def test_every_preset_is_worked_out():
    assert set(BY_HAND) == set(PRESETS)


# Packed and compiled those that multiply what belongs to a sequence.
LAYOUTS = [(preset, "eager") for preset in PRESETS] + [(p, "packed") for p in ("gspo", "topr")]


@pytest.mark.parametrize(("preset", "layout"), LAYOUTS)
def test_preset_by_hand(preset, layout):
    advantages, gradient, objective, weight = BY_HAND[preset]
    slots = slots_of(preset)
    found = advantages_of(slots, [1, 0], LENGTHS).reshape(2, -1)[:, 0]
    np.testing.assert_allclose(found, advantages, rtol=3e-6)  # the std's epsilon is 1e-6
    data = data_of(MASK, np.array(advantages)[:, None], BEHAVIOUR.astype(np.float32))
    logprobs, at = LOGPROBS.astype(np.float32), np.nonzero(MASK)
    if layout == "packed":
        slots = slots_of(preset, sequences_per_row=3)
        logprobs, data, at = packed(logprobs, data)
    run = differentiated(slots)
    result = (run if layout == "eager" else jit(run))(logprobs, data)
    np.testing.assert_allclose(-np.asarray(result.grad_bt)[at], gradient, rtol=2e-6)
    assert np.count_nonzero(result.grad_bt) == np.count_nonzero(gradient)
    if objective is None:
        objective = (gradient * LOG_PI).sum()
    assert float(-result.loss_sum) == pytest.approx(objective, rel=2e-6)
    assert float(result.weight) == weight


def packed(logprobs, data):
    """Both samples in the second of two rows, each behind a prompt token; and where a .. e are."""
    at = (np.full(5, 1), np.array([1, 2, 4, 5, 6]))
    wide = {name: np.zeros((2, 8), x.dtype) for name, x in data.items()}
    for name, x in data.items():
        wide[name][at] = tokens(x)
    wide["targets_segmentation"][1] = [1, 1, 1, 2, 2, 2, 2, 0]
    wide_logprobs = np.full((2, 8), -1.0, np.float32)
    wide_logprobs[at] = tokens(logprobs)
    return wide_logprobs, wide, at


@modes
def test_decoupled_ppo_clips_against_the_proximal_policy(mode):
    # Two updates: pi_prox = 0.2, mu = 0.1 -> weight 2; u = 0.22/0.2 = 1.1 and 0.3/0.2 = 1.5.
    # A = 1: the first token's term is 2 * 1.1, the second's is clipped, 2 * 1.2, although both have
    # left mu far behind. One token of unknown pi_prox takes pi_theta: weight 3, u = 1. The cap of 5
    # is on pi_prox/mu = 6, and not on pi_theta/mu = 4.8; u = 0.8: 5 * 0.8.
    slots = slots_of("decoupled_ppo", epochs=2)
    data = data_of([[1, 1, 1, 1]], 1.0, np.log(np.full((1, 4), 0.1, np.float32)))
    data["rl_old_logprobs"] = np.log(np.float32([[0.2, 0.2, 0.9, 0.6]]))
    data["rl_old_known"] = np.int32([[1, 1, 0, 1]])
    result = mode(differentiated(slots))(np.log(np.float32([[0.22, 0.3, 0.3, 0.48]])), data)
    np.testing.assert_allclose(-result.grad_bt, [[2.2, 0, 3, 4]], rtol=1e-6)
    assert float(-result.loss_sum) == pytest.approx(11.6)


def test_trls_grpo_by_hand():
    # A = +-0.5/(1/sqrt(2) + 1e-4). m is 2 and 2 of the first sample, whose product 4 exceeds 3, and
    # 0.5 of the second. r = 1, so that -dJ/dlog pi is 0, 0 and 0.5 A / 3 tokens.
    mu = np.log([[0.1, 0.1], [0.4, 0.4]])
    old = np.log([[0.2, 0.2], [0.2, 0.4]])
    found = evaluate_objective(
        "trl/grpo",
        logprobs_bt=old,
        behaviour_logprobs_bt=mu,
        proximal_logprobs_bt=old,
        rewards_b=[1, 0],
        mask_bt=[[1, 1], [1, 0]],
        group_size=2,
    )
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    np.testing.assert_allclose(found.advantages_bt, [[advantage, advantage], [-advantage, 0]])
    expected = [[0, 0], [0.5 * advantage / 3, 0]]
    np.testing.assert_allclose(found.grad_bt, expected, rtol=1e-5, atol=1e-8)


def test_kl_is_off_and_one_number_switches_the_papers_on():
    kinds = {"ppo": ("k1", "reward"), "reinforce_plus_plus": ("k2", "loss")}
    kinds |= {"reinforce_plus_plus_baseline": ("k2", "loss")}
    for preset in PRESETS:
        assert not slots_of(preset).needs_reference
        slots = slots_of(preset, kl={"coefficient": 0.04})
        assert slots.needs_reference
        kl = slots.algorithm.kl
        assert (kl.estimator, kl.placement) == kinds.get(preset, ("k3", "loss"))


@pytest.mark.parametrize("preset", ["grpo", "gspo", "cispo", "topr", "decoupled_ppo"])
def test_impossible_tokens_leave_loss_and_gradient_finite(preset):
    # Ratios of e^199 and e^-199 are infinite and 0 in float32; with advantages of 0, 1 and -1.
    impossible = np.float32([[-200, -1], [-1, -1]])
    advantages = np.repeat([0.0, 1, -1], 2)[:, None]
    data = data_of(np.ones((6, 2)), advantages, np.tile(impossible, (3, 1)))
    logprobs = np.tile(impossible[::-1], (3, 1))
    result = jit(differentiated(slots_of(preset)))(logprobs, data)
    assert np.isfinite(result.loss_sum) and np.isfinite(result.grad_bt).all()
    assert not np.asarray(result.grad_bt)[:2].any()


@pytest.mark.parametrize("preset", ["aipo", "cispo", "topr"])
def test_kl_of_an_impossible_token_leaves_loss_and_gradient_finite(preset):
    # K3 = e^94 + ... is infinite in float32, and the token's weight, e^-94, is 0.
    data = data_of([[1, 1]], -1.0, np.float32([[-1, -1]]))
    data["rl_reference_logprobs"] = np.float32([[-1, -1]])
    slots = slots_of(preset, kl={"coefficient": 0.04, "placement": "loss", "estimator": "k3"})
    result = jit(differentiated(slots))(np.float32([[-95, -1]]), data)
    assert np.isfinite(result.loss_sum) and np.isfinite(result.grad_bt).all()


def test_k3_pulls_an_impossible_token_up_or_leaves_it_but_never_pushes_it_down():
    # dK3/dd = 1 - e^-d; beyond the bound 0.
    slope = jax.grad(lambda d: kl_estimate("k3", d, jnp))
    assert float(slope(-39.0)) == pytest.approx(1 - math.exp(39), rel=1e-6)
    assert [float(slope(d)) for d in (-41.0, -90.0)] == [0, 0]
    # exp(-d) + d - 1 in float32 is 0 there.
    assert float(kl_estimate("k3", jnp.float32(1e-4), jnp)) == pytest.approx(5e-9, rel=1e-3)
