"""The inputs of the slots of an objective for each token.

JAX is imported when a method is called. Suffixes name axes: ``_bt`` is [rows, length].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from rlax_plugin.objective.ratios import ratio_of

if TYPE_CHECKING:
    import jax

Ratio = Literal["policy/old", "policy/behaviour", "old/behaviour"]
"""The ratio that a slot multiplies the term by."""


class TokenOutputs(NamedTuple):
    """A model's outputs for the target tokens, float32 [rows, length], with temperature.

    Attributes:
      logprobs_bt: log pi_theta of the target.
      entropy_bt: entropy of pi_theta over the whole vocabulary, nats.
      further: further outputs by name, [rows, length, ...]; only those that were asked for.
        ``features`` are those to which the output head is applied, in the model's own dtype.
    """

    logprobs_bt: jax.Array
    entropy_bt: jax.Array
    further: Mapping[str, jax.Array] = {}  # never changed


@dataclass(frozen=True)
class TokenInputs:
    """The inputs of a slot for each token; every array is [rows, length] and 0 on padding.

    Attributes:
      logprobs_bt: log pi_theta of the target token, with gradient, temperature applied.
      entropy_bt: entropy of pi_theta, nats, with gradient.
      old_logprobs_bt: log pi_old, as ``old_policy`` says.
      trainer_logprobs_bt: the trainer's log-probabilities, to be compared with the sampler's: log
        pi_old; with ``old_policy: sampler``, where the trainer computes none, log pi_theta without
        gradient, which changes over several updates with one batch.
      behaviour_logprobs_bt: log mu, the sampler's log-probability of the same token.
      reference_logprobs_bt: log pi_ref; 0 without KL in the loss.
      advantages_bt: A.
      mask_bt: 1 on tokens that train, 0 elsewhere.
      sequence_bt: int32, 1 .. ``max_sequences`` within a row on tokens that train, 0 elsewhere.
      max_sequences: largest number of sequences in one row.
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
        """The log ratio log r = log pi_theta - log pi_old, with gradient; 0 on padding."""
        return self.logprobs_bt - self.old_logprobs_bt

    @property
    def ratio_bt(self) -> jax.Array:
        """The ratio r = pi_theta / pi_old, with gradient; 1 on padding."""
        return ratio_of(self.log_ratio_bt)

    @property
    def mismatch_bt(self) -> jax.Array:
        """The ratio of trainer to sampler before the update, pi_old / mu; 1 on padding."""
        return ratio_of(self.trainer_logprobs_bt - self.behaviour_logprobs_bt)

    @property
    def length_bt(self) -> jax.Array:
        """The number of trained tokens of each token's sequence; 0 on padding."""
        return self.sequence_sum(self.mask_bt)

    def sequence_sum(self, x_bt: jax.Array) -> jax.Array:
        """Returns [rows, length]: at each token that trains, the sum of x over its sequence."""
        import jax.numpy as jnp

        if self.max_sequences == 1:
            return (x_bt * self.mask_bt).sum(axis=1, keepdims=True) * self.mask_bt
        of_bts = self._membership()
        sums_bs = jnp.where(of_bts, x_bt[..., None], 0).sum(axis=1)
        # One term of the sum is not 0, so that it is exact.
        return jnp.where(of_bts, sums_bs[:, None, :], 0).sum(axis=-1)

    def sequence_mean(self, x_bt: jax.Array) -> jax.Array:
        """Returns [rows, length]: at each token that trains, the mean of x over its sequence."""
        return self.sequence_sum(x_bt) / self.length_bt.clip(1)

    def sequence_count(self) -> jax.Array:
        """Returns the number of sequences with a token that trains, a scalar."""
        return self._membership().any(axis=1).sum().astype(self.mask_bt.dtype)

    def _membership(self) -> jax.Array:
        import jax.numpy as jnp

        return self.sequence_bt[..., None] == jnp.arange(1, self.max_sequences + 1)

    def frozen(self) -> TokenInputs:
        """Returns the same inputs without gradients."""
        import jax

        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_bt")}
        return replace(self, **jax.lax.stop_gradient(arrays))


@runtime_checkable
class RatioFactor(Protocol):
    """A function in a slot that multiplies the term by a ratio.

    Attributes:
      ratio: the ratio; the product over the slots must make sense. None: it is no single ratio.
    """

    ratio: Ratio | None


@runtime_checkable
class StaleCorrection(Protocol):
    """A function in a slot that may limit the influence of samples from old weights.

    Attributes:
      corrects: True if it clips or masks their ratio to the sampler.
    """

    corrects: bool


@runtime_checkable
class SlotMetrics(Protocol):
    """A function in a slot that reports metrics."""

    def metrics(self, inputs: TokenInputs) -> Mapping[str, jax.Array]:
        """Returns name -> value of each token, [rows, length].

        Its mean over tokens is reported as ``objective/<name>``, in the slot grad_2 as
        ``objective/grad_2_<name>``.
        """
        ...
