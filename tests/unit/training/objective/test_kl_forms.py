"""The KL in the loss: its gradients, factors, clamps and its own aggregation, worked out by hand.

One token with pi = 1/2, pi_ref = 1/4, pi_old = mu = 2/5: d = log 2, K1 = d = 0.693147,
K2 = d^2 / 2 = 0.240227, K3 = e^-d + d - 1 = 0.193147; their derivatives are 1, d and 1 - e^-d =
1/2. r = 5/4. With A = 0 the loss is the KL.
"""

import jax
import numpy as np
import pytest
from objective_harness import LIBRARIES, data_of, differentiated, slots_of

from rlax_plugin.api import kl_token_rewards
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import KL
from rlax_plugin.training.objective.ratios import kl_value
from rlax_plugin.training.objective.terms import reported

D = np.log(2.0)
K3 = D - 0.5
PLAIN = {
    "aggregation": {"name": "token_mean"},
    "advantage": {"name": "leave_one_out"},
    "importance_weight": {"name": "one"},
    "grad_1": {"name": "log_prob"},
}


def loss_of(kl, dtype=np.float64, mode=lambda f: f, **objective):
    """(loss, its derivative with respect to log pi) of the token."""
    slots = slots_of(**PLAIN | objective, kl={"coefficient": 1.0, **kl})
    data = data_of([[1]], 0.0, np.log(np.array([[0.4]], dtype)))
    data["rl_reference_logprobs"] = np.log(np.array([[0.25]], dtype))
    result = mode(differentiated(slots))(np.log(np.array([[0.5]], dtype)), data)
    return float(result.loss_sum), float(result.grad_bt[0, 0])


FORMS = [
    ({"estimator": "k1"}, D, 1),
    ({"estimator": "k2"}, D**2 / 2, D),
    ({}, K3, 0.5),
    # The value of K3 with the gradient of K2.
    ({"gradient": "k2"}, K3, D),
    ({"estimator": "k1", "gradient": "k2"}, D, D),
    # K3' + K3 = (1 - e^-d) + (e^-d + d - 1) = d.
    ({"gradient": "score_function"}, K3, D),
    ({"estimator": "k1", "gradient": "score_function"}, D, 1 + D),
    # (r K)' = r (K' + K).
    ({"times": "ratio"}, 1.25 * K3, 1.25 * D),
    ({"times": "sequence_ratio"}, 1.25 * K3, 1.25 * D),
    ({"times": "behaviour_ratio"}, 1.25 * K3, 1.25 * D),
    ({"estimator": "k1", "times": "ratio"}, 1.25 * D, 1.25 * (1 + D)),
    # (r e^(x - sg x) K)' = r (K' + 2 K).
    ({"times": "ratio", "gradient": "score_function"}, 1.25 * K3, 1.25 * (0.5 + 2 * K3)),
    ({"clamp": 0.1}, 0.1, 0),
    ({"clamp": 0.2}, K3, 0.5),
    ({"clamp": 0.1, "gradient": "k2"}, 0.1, D),
    ({"clamp_log_ratio": 0.5}, np.exp(-0.5) - 0.5, 0),
    ({"clamp_log_ratio": 0.5, "gradient": "score_function"}, np.exp(-0.5) - 0.5, 0),
    ({"clamp_log_ratio": 0.7}, K3, 0.5),
]


@pytest.mark.parametrize(("kl", "value", "gradient"), FORMS, ids=str)
def test_kl_by_hand_in_float64_and_float32(kl, value, gradient):
    with jax.enable_x64(True):
        assert loss_of(kl) == pytest.approx((value, gradient), rel=1e-12, abs=1e-15)
    assert loss_of(kl, np.float32) == pytest.approx((value, gradient), rel=1e-5, abs=1e-7)


def test_the_sequences_ratio_has_the_gradient_of_all_its_tokens():
    # r = 5/4 and 1, s = 1.25^(1/2). Loss: s (K3 + 0); the derivative by the second token, whose K3
    # has none, is s/2 K3.
    slots = slots_of(**PLAIN, kl={"coefficient": 1.0, "times": "sequence_ratio"})
    data = data_of([[1, 1]], 0.0, np.log(np.float32([[0.4, 0.4]])))
    data["rl_reference_logprobs"] = np.log(np.float32([[0.25, 0.4]]))
    result = differentiated(slots)(np.log(np.float32([[0.5, 0.4]])), data)
    s = np.sqrt(1.25)
    np.testing.assert_allclose(result.loss_sum, s * K3, rtol=1e-5)
    np.testing.assert_allclose(result.grad_bt, [[s * (0.5 + K3 / 2), s * K3 / 2]], rtol=1e-5)


def test_corrections_multiply_the_kl_unless_it_is_unweighted():
    half = {"corrections": [{"name": "truncated_importance_sampling", "cap": 0.5}]}
    assert loss_of({}, np.float32, **half) == pytest.approx((K3 / 2, 0.25), rel=1e-5)
    assert loss_of({"weighted": False}, np.float32, **half) == pytest.approx((K3, 0.5), rel=1e-5)


def sequences(dtype=np.float32):
    """Sequences of 1 and 3 tokens, whose d are log 2, and log 2, 0, 0."""
    mask = np.array([[1, 0, 0], [1, 1, 1]])
    logprobs = np.log(np.array([[0.5, 1, 1], [0.5, 0.4, 0.4]], dtype))
    data = data_of(mask, 0.0, np.log(np.full((2, 3), 0.4, dtype)))
    data["rl_reference_logprobs"] = np.log(np.array([[0.25, 1, 1], [0.25, 0.4, 0.4]], dtype))
    return logprobs, data


def test_the_kl_may_have_an_aggregation_of_its_own():
    # The mean over tokens is 2 K3 / 4, that over sequences (K3 + K3/3) / 2, whatever that of the
    # policy's term is, whose total weight is 2 sequences.
    logprobs, data = sequences()
    for name, mean in (("token_mean", K3 / 2), ("sequence_mean", K3 * 2 / 3)):
        kl = {"coefficient": 1.0, "aggregation": {"name": name}}
        slots = slots_of(**PLAIN | {"aggregation": {"name": "sequence_mean"}}, kl=kl)
        result = differentiated(slots)(logprobs, data)
        np.testing.assert_allclose(result.loss_sum / result.weight, mean, rtol=1e-5)
        assert reported(result.metrics)["objective/kl_penalty"] == pytest.approx(mean, rel=1e-5)


@pytest.mark.parametrize(
    "option",
    [
        {"gradient": "k2"},
        {"times": "ratio"},
        {"weighted": False},
        {"aggregation": {"name": "token_mean"}},
    ],
    ids=str,
)
def test_options_of_the_loss_have_no_effect_in_the_reward(option):
    kl = {"coefficient": 0.1, "placement": "reward", **option}
    with pytest.raises(ConfigError, match="has no effect with kl") as error:
        slots_of("ppo", kl=kl)
    assert error.value.key == f"rlax.objective.kl.{next(iter(option))}"


# OpenRLHF clamps its estimates by default, verl's low_var_kl too; ROLL and AReaL took it over.
CLAMPED = [name for name in LIBRARIES if name.startswith(("openrlhf/", "roll/", "areal/"))]


@pytest.mark.parametrize("preset", CLAMPED)
def test_the_kl_of_a_library_that_clamps_is_at_most_10(preset: str) -> None:
    kl = slots_of(preset, kl={"coefficient": 0.5}).algorithm.kl
    far_bt = np.array([[-30.0, 30.0, -1.0]])
    assert np.abs(kl_value(kl, far_bt)).max() == 10 and np.abs(kl_value(kl, far_bt))[0, 2] < 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"estimator": "k1"}, [D, -D]),
        ({"estimator": "k2"}, [D**2 / 2] * 2),
        ({"estimator": "k3"}, [K3, 1 - D]),
        ({"estimator": "k1", "clamp": 0.1}, [0.1, -0.1]),
    ],
    ids=str,
)
def test_the_kl_in_the_reward_by_hand(options, expected):
    mu, reference = np.log([[0.5, 0.25, np.nan]]), np.log([[0.25, 0.5, np.inf]])
    kl = KL(coefficient=0.5, placement="reward", **options)
    found = kl_token_rewards(kl, mu, reference, np.array([[1, 1, 0]]))
    np.testing.assert_allclose(found, [[*(-0.5 * np.array(expected)), 0]], rtol=1e-12)
