"""The inputs of the slots of an objective for each token.

A slot sees one micro-batch, which may hold only a part of a group. A sequence, one trajectory of a
sample, always lies whole in one row, so ``sequence_sum`` adds up anything, ratios too. What is
known before the update, such as rewards and lengths, comes with each token for its whole group and
sample.

JAX is imported when a method is called. Suffixes name axes: ``_bt`` is [rows, length].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from rlax_plugin.base.errors import PluginError
from rlax_plugin.config import Schedule
from rlax_plugin.training.objective.ratios import ratio_of

if TYPE_CHECKING:
    import jax

Ratio = Literal["policy/old", "policy/behaviour", "old/behaviour"]
"""The ratio that a slot multiplies the term by."""


class TokenOutputs(NamedTuple):
    """A model's outputs for the target tokens, float32 [rows, length], with temperature.

    Log-probs and entropy of targets that do not train are not defined: a trainer need not compute
    them.

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

    All fields and properties that end in ``_bt`` are such arrays. A property of the batch, from
    ``group_bt`` on, raises PluginError if the trainer's batch lacks its array.

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
      batch: further arrays of the batch by name, see ``training/objective/batches.py``.
      steps: RL steps of the whole run; 0: not known.
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
    batch: Mapping[str, jax.Array] = field(default_factory=dict)
    steps: int = 0

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

    @property
    def group_bt(self) -> jax.Array:
        """The group's place in the batch of the RL step, from 1."""
        return self._of_batch("rl_group")

    @property
    def group_size_bt(self) -> jax.Array:
        """The number of samples in the group that have a score.

        With ``rlax.curation.selection``, the number of its samples that train, repeated ones again.
        """
        return self._of_batch("rl_group_size")

    @property
    def group_tokens_bt(self) -> jax.Array:
        """The number of trained tokens of the group, in all micro-batches of the update."""
        return self._of_batch("rl_group_tokens")

    @property
    def update_sequences_bt(self) -> jax.Array:
        """The number of sequences in all micro-batches of the update."""
        return self._of_batch("rl_update_sequences")

    @property
    def update_groups_bt(self) -> jax.Array:
        """The number of groups in all micro-batches of the update."""
        return self._of_batch("rl_update_groups")

    @property
    def sample_bt(self) -> jax.Array:
        """The sample's index in its group, from 0."""
        return self._of_batch("rl_sample")

    @property
    def sample_tokens_bt(self) -> jax.Array:
        """The number of trained tokens of the sample in the update, in all its trajectories."""
        return self._of_batch("rl_sample_tokens")

    @property
    def sample_length_bt(self) -> jax.Array:
        """The number of sampled tokens of the sample, in all its trajectories."""
        return self._of_batch("rl_sample_length")

    @property
    def reward_bt(self) -> jax.Array:
        """The reward of the sample: all that rewards and environment paid it.

        It has neither a length penalty nor the KL, and nothing is subtracted from it.
        """
        return self._of_batch("rl_total_reward")

    @property
    def reward_parts_btp(self) -> jax.Array:
        """The value of each of ``rlax.rewards``, not weighted: [rows, length, rewards]."""
        return self._of_batch("rl_reward_parts")

    @property
    def step(self) -> jax.Array:
        """The RL step, from 1, a scalar of the mask's dtype; 0 if no token trains."""
        return self._of_batch("rl_step").max().astype(self.mask_bt.dtype)

    @property
    def progress(self) -> jax.Array:
        """The share of the run's RL steps that is complete after this one, a scalar in (0, 1]."""
        if not self.steps:
            raise PluginError("a slot reads progress, but the number of RL steps is not known")
        return (self.step / self.steps).clip(max=1)

    def value(self, number: float | Schedule) -> Any:
        """Returns a number as it is, and the value of a schedule at ``step``, a traced scalar."""
        return number.at(self.step) if isinstance(number, Schedule) else number

    def _of_batch(self, name: str) -> jax.Array:
        if name not in self.batch:
            raise PluginError(f"a slot of the objective reads {name}, which the batch lacks")
        return self.batch[name]

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

    def sequence_max(self, x_bt: jax.Array) -> jax.Array:
        """Returns [rows, length]: at each token that trains, the largest x of its sequence."""
        import jax.numpy as jnp

        of_bts = self._membership()
        most_bs = jnp.where(of_bts, x_bt[..., None], -jnp.inf).max(axis=1)
        return jnp.where(of_bts, most_bs[:, None, :], 0).sum(axis=-1)

    def sequence_count(self) -> jax.Array:
        """Returns the number of sequences with a token that trains, a scalar."""
        return self._membership().any(axis=1).sum().astype(self.mask_bt.dtype)

    def _membership(self) -> jax.Array:
        import jax.numpy as jnp

        return self.sequence_bt[..., None] == jnp.arange(1, self.max_sequences + 1)

    def only(self, kept_bt: jax.Array) -> TokenInputs:
        """Returns the inputs as if only some of the tokens trained."""
        import jax.numpy as jnp

        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_bt")}
        kept = {name: jnp.where(kept_bt, x_bt, 0) for name, x_bt in arrays.items()}
        return replace(self, **kept)

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
class Imitation(Protocol):
    """An advantage that may be the weight of a likelihood.

    Attributes:
      imitates: True if it is never below 0, so that samples of any policy may train.
    """

    imitates: bool


@runtime_checkable
class Rejection(Protocol):
    """A correction that is a mask.

    Attributes:
      rejects: True if its factor is 1 on tokens to keep and 0 on those that it rejects.
    """

    rejects: bool


@runtime_checkable
class KeptCounter(Protocol):
    """An aggregation that may count only the tokens that no correction rejects.

    Attributes:
      counts_kept: True if rejected tokens are as if they did not train, in all slots and
        denominators.
    """

    counts_kept: bool


@runtime_checkable
class SlotMetrics(Protocol):
    """A function in a slot that reports metrics."""

    def metrics(self, inputs: TokenInputs) -> Mapping[str, jax.Array]:
        """Returns name -> value of each token, [rows, length].

        Its mean over tokens is reported as ``objective/<name>``, in the slot grad_2 as
        ``objective/grad_2_<name>``.
        """
        ...
