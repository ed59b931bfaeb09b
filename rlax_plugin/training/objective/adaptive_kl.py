"""The KL coefficient that follows the measured KL (https://arxiv.org/abs/1909.08593, sec. 2.2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import KL
from rlax_plugin.training.objective.ratios import kl_estimate

KL_COEFFICIENT = "rl_kl_coefficient"
"""float32, beta of the step; only with ``kl.adaptive`` and the KL term in the loss."""

_MOST = 0.2  # of the relative error


class AdaptiveCoefficient:
    """The coefficient of the present step; ``observe`` makes it that of the next one.

    Args:
      kl: of the objective, with ``adaptive``.

    Attributes:
      coefficient: beta; it is all of the state.
      measured: KL of the latest step in units of its target; 0 before the first step.
    """

    def __init__(self, kl: KL):
        self._kl = kl
        assert isinstance(kl.coefficient, int | float), "see check"
        self.coefficient, self.measured = float(kl.coefficient), 0.0

    def observe(self, batch: Mapping[str, np.ndarray], reference_logprobs_bt: np.ndarray) -> None:
        """Measures the KL of the sampler to the reference, and changes the coefficient.

        Args:
          batch: of ``training.objective.batches``; nothing changes if no token of it trains.
          reference_logprobs_bt: of the target tokens, nats.
        """
        adaptive, trained_bt = self._kl.adaptive, batch["rl_mask"] > 0
        assert adaptive is not None, "see check"
        if not trained_bt.any():
            return
        samples = len(np.unique(batch["rl_episode"][trained_bt]))
        behaviour_n = batch["rl_behaviour_logprobs"][trained_bt].astype(np.float64)
        log_ratio_n = behaviour_n - reference_logprobs_bt[trained_bt]
        total = float(kl_estimate(self._kl.estimator, log_ratio_n, np).sum())
        count = samples if adaptive.per == "sample" else len(log_ratio_n)
        self.measured = total / count / adaptive.target
        error = min(max(self.measured - 1, -_MOST), _MOST)
        self.coefficient *= 1 + error * samples / adaptive.horizon


def check(kl: KL, most_samples: int) -> None:
    """Checks that an adaptive coefficient begins with a number that it can change, and stays so.

    Args:
      most_samples: of a batch.

    Raises:
      ConfigError: it is a schedule, or 0, or one batch could make it 0.
    """
    if kl.adaptive is None:
        return
    key, value = "rlax.objective.kl.coefficient", kl.coefficient
    if not isinstance(value, int | float):
        reason = "must be a number with kl.adaptive, which changes it in every step"
        raise ConfigError(key, value, reason)
    if value == 0:
        reason = "must be above 0 with kl.adaptive, which multiplies it in every step"
        raise ConfigError(key, value, reason)
    if (horizon := kl.adaptive.horizon) < most_samples:
        reason = f"must be at least {most_samples:,}, the samples of one batch"
        raise ConfigError("rlax.objective.kl.adaptive.horizon", horizon, reason)
