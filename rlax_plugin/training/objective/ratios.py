"""Functions of two log-probs of a token: a bounded ratio, and an estimate of KL.

JAX is imported when a function is called. Suffixes name axes: ``_bt`` is [rows, length].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin.config import KL

if TYPE_CHECKING:
    import jax


MAX_LOG_RATIO = 40.0  # nats


def ratio_of(log_ratio_bt: jax.Array) -> jax.Array:
    """Returns exp(min(x, 40)), a finite ratio, so that a weight or an advantage of 0 removes it.

    e^40 is 2e17; an infinite ratio would turn the product with 0, and its gradient, into NaN.
    """
    import jax.numpy as jnp

    return jnp.exp(jnp.minimum(log_ratio_bt, MAX_LOG_RATIO))


def kl_estimate(estimator: str, log_ratio: Any, xp: Any) -> Any:
    """Returns K1, K2 or K3 of d = log pi - log pi_ref; see ``config.KL``.

    Args:
      estimator: k1, k2 or k3.
      log_ratio: d.
      xp: ``numpy`` or ``jax.numpy``, as the array is.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio**2 / 2
    # expm1, as exp(-d) - 1 loses its digits where d is near 0. Bounded as ``ratio_of``.
    log_ratio = xp.maximum(log_ratio, -MAX_LOG_RATIO)
    return xp.expm1(-log_ratio) + log_ratio


def kl_token_rewards(
    kl: KL,
    behaviour_logprobs_bt: np.ndarray,
    reference_logprobs_bt: np.ndarray,
    mask_bt: np.ndarray,
) -> np.ndarray:
    """Returns token rewards of ``kl.placement: reward``, -beta K(mu, pi_ref); see ``config.KL``.

    Args:
      kl: the config, with the coefficient of the step (``KL.at``).
      behaviour_logprobs_bt: log mu, nats.
      reference_logprobs_bt: log pi_ref of the same tokens, nats.
      mask_bt: above 0 on tokens that get a reward; the others get 0, whatever the arrays hold
        there.

    Returns:
      float64 [rows, length], for ``advantages.of_batch``.
    """
    assert isinstance(kl.coefficient, int | float), "of one step"
    paid_bt = np.asarray(mask_bt) > 0
    behaviour_bt = np.where(paid_bt, np.asarray(behaviour_logprobs_bt, np.float64), 0.0)
    reference_bt = np.where(paid_bt, np.asarray(reference_logprobs_bt, np.float64), 0.0)
    # K of equal log-probs is 0.
    return -kl.coefficient * kl_value(kl, behaviour_bt - reference_bt)


def kl_value(kl: KL, log_ratio_bt: np.ndarray) -> np.ndarray:
    """Returns the estimate of the config, clamped as it says, in numpy."""
    if kl.clamp_log_ratio is not None:
        log_ratio_bt = np.clip(log_ratio_bt, -kl.clamp_log_ratio, kl.clamp_log_ratio)
    found_bt = kl_estimate(kl.estimator, log_ratio_bt, np)
    return found_bt if kl.clamp is None else np.clip(found_bt, -kl.clamp, kl.clamp)
