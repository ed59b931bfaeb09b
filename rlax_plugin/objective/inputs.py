"""What the slots of an objective see of each token, and what is made of two log-probs.

JAX is imported when a method is called. Suffixes name axes: ``_bt`` is [rows, length].
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlax_plugin.config import KL

if TYPE_CHECKING:
    import jax

Ratio = Literal["policy/old", "policy/behaviour", "old/behaviour"]
"""What a slot multiplies the term by."""

MAX_LOG_RATIO = 40.0  # nats


def ratio_of(log_ratio_bt: jax.Array) -> jax.Array:
    """exp(min(x, 40)): a ratio that is finite, so that a weight or an advantage of 0 removes it.

    e^40 is 2e17; an infinite ratio would turn the product with 0, and its gradient, into NaN.
    """
    import jax.numpy as jnp

    return jnp.exp(jnp.minimum(log_ratio_bt, MAX_LOG_RATIO))


def kl_estimate(estimator: str, log_ratio: Any, xp: Any) -> Any:
    """K1, K2 or K3 of d = log pi - log pi_ref; see ``config.KL``.

    Args:
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
    """What ``kl.placement: reward`` pays each token: -beta K(mu, pi_ref), see ``config.KL``.

    Args:
      behaviour_logprobs_bt: log mu, nats.
      reference_logprobs_bt: log pi_ref of the same tokens, nats.
      mask_bt: above 0 on tokens that are paid; the others get 0, whatever the arrays hold there.

    Returns:
      float64 [rows, length], for ``advantages.of_batch``.
    """
    paid_bt = np.asarray(mask_bt) > 0
    behaviour_bt = np.where(paid_bt, np.asarray(behaviour_logprobs_bt, np.float64), 0.0)
    reference_bt = np.where(paid_bt, np.asarray(reference_logprobs_bt, np.float64), 0.0)
    # K of equal log-probs is 0.
    return -kl.coefficient * kl_estimate(kl.estimator, behaviour_bt - reference_bt, np)


class Scores(NamedTuple):
    """What a model says of the target tokens, float32 [rows, length], temperature applied.

    Attributes:
      logprobs_bt: log pi_theta of the target.
      entropy_bt: of pi_theta over the whole vocabulary, nats.
    """

    logprobs_bt: jax.Array
    entropy_bt: jax.Array


@dataclass(frozen=True)
class TokenInputs:
    """What a slot sees of each token; every array is [rows, length] and 0 on padding.

    Attributes:
      logprobs_bt: log pi_theta of the target token, with gradient, temperature applied.
      entropy_bt: of pi_theta, nats, with gradient.
      old_logprobs_bt: log pi_old, as ``old_policy`` says.
      trainer_logprobs_bt: as the trainer computes them, to be compared with the sampler's: log
        pi_old; with ``old_policy: sampler``, where the trainer computes none, log pi_theta without
        gradient, which several updates with one batch move.
      behaviour_logprobs_bt: log mu, the sampler's log-probability of the same token.
      reference_logprobs_bt: log pi_ref; 0 without KL in the loss.
      advantages_bt: A.
      mask_bt: 1 on tokens that train, 0 elsewhere.
      sequence_bt: int32, 1 .. ``max_sequences`` within a row on tokens that train, 0 elsewhere.
      max_sequences: sequences in one row at most.
    """

    logprobs_bt: jax.Array
    entropy_bt: jax.Array
    old_logprobs_bt: jax.Array
    trainer_logprobs_bt: jax.Array
    behaviour_logprobs_bt: jax.Array
    reference_logprobs_bt: jax.Array
    advantages_bt: jax.Array
    mask_bt: jax.Array
    sequence_bt: jax.Array
    max_sequences: int = 1

    @property
    def log_ratio_bt(self) -> jax.Array:
        """log r = log pi_theta - log pi_old, with gradient; 0 on padding."""
        return self.logprobs_bt - self.old_logprobs_bt

    @property
    def ratio_bt(self) -> jax.Array:
        """r = pi_theta / pi_old, with gradient; 1 on padding."""
        return ratio_of(self.log_ratio_bt)

    @property
    def mismatch_bt(self) -> jax.Array:
        """Trainer over sampler before the update: pi_old / mu; 1 on padding."""
        return ratio_of(self.trainer_logprobs_bt - self.behaviour_logprobs_bt)

    @property
    def length_bt(self) -> jax.Array:
        """Trained tokens of each token's sequence; 0 on padding."""
        return self.sequence_sum(self.mask_bt)

    def sequence_sum(self, x_bt: jax.Array) -> jax.Array:
        """[rows, length]: at each token that trains, the sum of x over its sequence."""
        import jax.numpy as jnp

        if self.max_sequences == 1:
            return (x_bt * self.mask_bt).sum(axis=1, keepdims=True) * self.mask_bt
        of_bts = self._membership()
        sums_bs = jnp.where(of_bts, x_bt[..., None], 0).sum(axis=1)
        # One term of the sum is not 0, so that it is exact.
        return jnp.where(of_bts, sums_bs[:, None, :], 0).sum(axis=-1)

    def sequence_mean(self, x_bt: jax.Array) -> jax.Array:
        """[rows, length]: at each token that trains, the mean of x over its sequence."""
        return self.sequence_sum(x_bt) / self.length_bt.clip(1)

    def sequence_count(self) -> jax.Array:
        """Scalar: sequences with a token that trains."""
        return self._membership().any(axis=1).sum().astype(self.mask_bt.dtype)

    def _membership(self) -> jax.Array:
        import jax.numpy as jnp

        return self.sequence_bt[..., None] == jnp.arange(1, self.max_sequences + 1)

    def frozen(self) -> TokenInputs:
        """The same without gradients."""
        import jax

        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_bt")}
        return replace(self, **jax.lax.stop_gradient(arrays))
