"""The bigram policy: log-probs and gradient against numbers worked out by hand."""

import math

import numpy as np
import pytest

from rlax_plugin.testing import policy

V = 64


def batch(seed: int, rows: int = 3, length: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = (rng.random((rows, length)) < 0.6).astype(np.int32)
    mask[-1] = 0  # an errored sample
    return {
        "inputs": rng.integers(0, V, (rows, length), dtype=np.int32),
        "targets": rng.integers(0, V, (rows, length), dtype=np.int32),
        "rl_mask": mask,
        "rl_advantages": rng.standard_normal((rows, length)).astype(np.float32),
    }


def test_log_probs_of_equal_logits_are_equal() -> None:
    weights = {name: np.zeros(shape) for name, shape in policy.SHAPES.items()}
    np.testing.assert_allclose(policy.log_probs(weights, np.array([5])), -math.log(V))
    weights["bias"][9] = 2.0  # temperature 2: e times as probable as each other token
    found = policy.log_probs(weights, np.array([5]), temperature=2.0)[0]
    assert found[9] == pytest.approx(1 - math.log(63 + math.e))
    assert found[8] == pytest.approx(-math.log(63 + math.e))


@pytest.mark.parametrize("per_token", [False, True])
def test_the_gradient_is_that_of_finite_differences(per_token: bool) -> None:
    temperature = np.linspace(0.5, 1.5, 21).reshape(3, 7) if per_token else 0.7
    rng = np.random.default_rng(1)
    weights = {name: rng.standard_normal(shape) for name, shape in policy.SHAPES.items()}
    data = batch(2)
    trained = data["rl_mask"] > 0

    def loss(weights: policy.Weights) -> float:
        of_rows = temperature[trained] if isinstance(temperature, np.ndarray) else temperature
        rows = policy.log_probs(weights, data["inputs"][trained], of_rows)
        chosen = rows[np.arange(len(rows)), data["targets"][trained]]
        return -(data["rl_advantages"][trained] * chosen).sum() / len(rows)

    gradient, logprobs = policy.reinforce(weights, data, temperature)
    assert logprobs.shape == (trained.sum(),)
    step = 1e-6
    for name, value in weights.items():
        direction = rng.standard_normal(value.shape)
        ahead = {**weights, name: value + step * direction}
        behind = {**weights, name: value - step * direction}
        slope = (loss(ahead) - loss(behind)) / (2 * step)
        assert slope == pytest.approx((gradient[name] * direction).sum(), rel=1e-6), name
    unseen = sorted(set(range(V)) - set(data["inputs"][trained].tolist()))
    assert not gradient["table"][unseen].any()
