"""The rule of the adaptive KL coefficient, by hand."""

import numpy as np
import pytest

from rlax_plugin.config import KL
from rlax_plugin.training.objective.adaptive_kl import AdaptiveCoefficient


def kl(**adaptive):
    return KL(coefficient=0.5, estimator="k1", adaptive={"target": 2.0, "horizon": 8, **adaptive})


def batch(differences, mask=None):
    """Two samples of two tokens, whose log-probs lie so far above the reference's."""
    differences = np.array(differences, np.float32)
    mask = np.ones((2, 2), np.int32) if mask is None else np.array(mask, np.int32)
    episode = np.array([[1, 1], [2, 2]], np.int32) * mask
    behaviour = -2 + differences
    return {"rl_mask": mask, "rl_episode": episode, "rl_behaviour_logprobs": behaviour}


REFERENCE = np.full((2, 2), -2.0, np.float32)


@pytest.mark.parametrize(
    ("options", "differences", "measured", "factor"),
    [
        # 2 of 8 samples: the factor is 1 + error / 4. KL per sample: (1.0 + 3.2) / 2 = 2.1.
        ({}, [[0.5, 0.5], [1.2, 2.0]], 1.05, 1 + 0.05 / 4),
        ({}, [[0.5, 0.5], [1.0, 1.6]], 0.9, 1 - 0.1 / 4),
        ({}, [[9.0, 9.0], [9.0, 9.0]], 9.0, 1 + 0.2 / 4),  # clipped
        ({}, [[-1.0, 0.0], [0.0, 0.0]], -0.25, 1 - 0.2 / 4),  # k1 may be negative
        ({"per": "token"}, [[2.0, 2.0], [2.0, 2.4]], 1.05, 1 + 0.05 / 4),
        ({"horizon": 1}, [[0.0, 0.0], [0.0, 0.0]], 0.0, 0.6),
    ],
)
def test_the_rule_by_hand(options, differences, measured, factor) -> None:
    coefficient = AdaptiveCoefficient(kl(**options))
    coefficient.observe(batch(differences), REFERENCE)
    assert coefficient.measured == pytest.approx(measured, rel=1e-6)
    assert coefficient.coefficient == pytest.approx(0.5 * factor, rel=1e-6)


def test_only_tokens_that_train_are_measured() -> None:
    coefficient = AdaptiveCoefficient(kl())
    with_nan = batch([[2.0, np.nan], [np.nan, np.nan]], mask=[[1, 0], [0, 0]])
    coefficient.observe(with_nan, REFERENCE)
    assert (coefficient.measured, coefficient.coefficient) == (1.0, 0.5)
    coefficient.observe(batch([[9.0, 9.0], [9.0, 9.0]], mask=np.zeros((2, 2))), REFERENCE)
    assert coefficient.coefficient == 0.5  # no token: as before
