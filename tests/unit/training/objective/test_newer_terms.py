"""SAPO, GMPO, DPPO and the clipped product, by hand."""

import jax
import numpy as np
import pytest
from objective_harness import data_of, differentiated, slots_of

from rlax_plugin.training.objective.diagnostics import summarise

PLAIN = {
    "aggregation": {"name": "token_mean"},
    "advantage": {"name": "leave_one_out"},
    "importance_weight": {"name": "one"},
}
MU = 0.4


def result_of(ratios, advantages, grad_1, dtype=np.float64, mode=lambda f: f, **more):
    """One sequence: (J, dJ/dlog pi of its tokens, report); J is the sum over its tokens."""
    slots = slots_of(**PLAIN, grad_1=grad_1, **more)
    data = data_of([[1] * len(ratios)], [advantages], np.log(np.full((1, len(ratios)), MU, dtype)))
    logprobs = np.log(np.array([ratios], dtype) * dtype(MU))
    result = mode(differentiated(slots))(logprobs, data)
    report = summarise(jax.device_get(result.metrics))
    return -float(result.loss_sum), -np.asarray(result.grad_bt)[0], report


def gate(r, tau):
    """4/tau sigmoid(tau (r - 1)), and its derivative by log r."""
    share = 1 / (1 + np.exp(-tau * (r - 1)))
    return 4 / tau * share, 4 * share * (1 - share) * r


def gated(a, r, tau):
    value, slope = gate(r, tau)
    return a * value, a * slope


G1, G2 = gated(1.0, 1.5, 1.0), gated(-1.0, 0.5, 1.05)
GS = gate(np.sqrt(0.75), 1.0)
E4 = np.exp(0.4)
CASES = [
    ({"name": "sigmoid_gate"}, [1.5, 0.5], [1, -1], G1[0] + G2[0], [G1[1], G2[1]]),
    # On policy every tau has the slope 1.
    ({"name": "sigmoid_gate", "tau_positive": 3.0}, [1.0], [2.0], 2 * 4 / 3 / 2, [2.0]),
    # s = (1.5 * 0.5)^(1/2) for both: each token moves both terms by half.
    ({"name": "sigmoid_gate", "per": "geometric"}, [1.5, 0.5], [1, 1], 2 * GS[0], [GS[1]] * 2),
    # min(2, e^0.4) is clipped; (e^0.4 * 0.5)^(1/2), and only the second token has a gradient.
    (
        {"name": "clipped_geometric_mean"},
        [2.0, 0.5],
        [1, 1],
        2 * np.sqrt(E4 * 0.5),
        [0, np.sqrt(E4 * 0.5)],
    ),
    # A < 0: 2 counts, 0.5 is raised to e^-0.4.
    (
        {"name": "clipped_geometric_mean"},
        [2.0, 0.5],
        [-1, -1],
        -2 * np.sqrt(2 / E4),
        [-np.sqrt(2 / E4), 0],
    ),
    # p - q: 0.2 and 0.1 of q = 0.4.
    ({"name": "trust_region", "high": 0.15}, [1.5, 1.25], [1, 1], 1.25, [0, 1.25]),
    # Of A < 0 only the other direction counts: 1.5 stays, 0.5 (q - p = 0.2) goes.
    ({"name": "trust_region", "low": 0.15}, [1.5, 0.5], [-1, -1], -1.5, [-1.5, 0]),
    ({"name": "trust_region", "low": 0.15, "high": 0.15, "side": "both"}, [1.5], [-1], 0, [0]),
    # verl: sg[min(r, 1.2)] log pi.
    (
        {"name": "trust_region", "high": 0.3, "cap": 1.2, "value": "log_prob"},
        [1.5],
        [1],
        1.2 * np.log(0.6),
        [1.2],
    ),
    # KL of (0.4, 0.6) to (0.6, 0.4): 0.4 log(2/3) + 0.6 log(3/2) = 0.0811.
    ({"name": "trust_region", "divergence": "kl", "high": 0.081}, [1.5], [1], 0, [0]),
    ({"name": "trust_region", "divergence": "kl", "high": 0.082}, [1.5], [1], 1.5, [1.5]),
    # The product 1.5 * 0.9 = 1.35 is clipped to 1.2 if A > 0, and not if A < 0.
    ({"name": "sequence_ratio", "per": "sequence", "high": 0.2}, [1.5, 0.9], [1, 1], 2.4, [0, 0]),
    (
        {"name": "sequence_ratio", "per": "sequence", "low": 0.2},
        [1.5, 0.9],
        [-1, -1],
        -2.7,
        [-2.7, -2.7],
    ),
]


@pytest.mark.parametrize(("grad_1", "ratios", "advantages", "value", "gradient"), CASES, ids=str)
def test_term_by_hand_in_float64_and_float32(grad_1, ratios, advantages, value, gradient):
    with jax.enable_x64(True):
        found, slopes, _ = result_of(ratios, advantages, grad_1)
        assert found == pytest.approx(value, rel=1e-7)
        np.testing.assert_allclose(slopes, gradient, rtol=1e-7, atol=1e-12)
    found, slopes, _ = result_of(ratios, advantages, grad_1, np.float32)
    assert found == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(slopes, gradient, rtol=1e-5, atol=1e-6)


def test_terms_report_what_they_clip():
    *_, report = result_of([2.0, 0.5], [1, 1], {"name": "clipped_geometric_mean"})
    assert report["objective/clip_fraction_high"] == 0.5
    assert report["objective/clip_fraction_low"] == 0
    *_, report = result_of([1.5, 1.25], [1, 1], {"name": "trust_region", "high": 0.15})
    assert report["objective/trust_region_masked_fraction"] == 0.5


def test_the_penalty_of_prime_rl_by_hand():
    # -0.5 (log 1.5)^2 and its derivative -log 1.5, without the advantage, also where A = 0.
    penalty = {"name": "log_ratio_penalty", "coefficient": 0.5}
    with jax.enable_x64(True):
        found, slopes, _ = result_of([1.5], [0], {"name": "trust_region"}, grad_2=penalty)
    assert found == pytest.approx(-0.5 * np.log(1.5) ** 2)
    np.testing.assert_allclose(slopes, [-np.log(1.5)], rtol=1e-7)
