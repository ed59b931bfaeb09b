"""The objective: one sum with five slots, filled by plug-ins (RLAX, https://arxiv.org/abs/2512.06392).

    J = sum_i sum_t sg[agg_it * is_it * corrections_it] * (sg[A_it] * grad_1_it + grad_2_it)

``sg`` is stop-gradient and is applied here, so no slot can leak a gradient through a weight. KL and
entropy, where the config asks for them, are part of grad_2: - beta K_it + c H_it. A loss takes
log-probabilities, never a model, and returns a sum and a weight: sums over micro-batches divided by
the sum of weights is exact however unevenly the tokens are spread.

JAX is imported when a loss is made, not with this module: ``rlax check`` resolves an objective
without it.

Suffixes name axes: ``_bt`` is [rows, length]. A row holds one sequence, or several if packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rlax_plugin import diagnostics
from rlax_plugin.advantages import AdvantageSlot, Outcomes, shaped
from rlax_plugin.config import KL, Algorithm, Choice, Objective, RlaxSection
from rlax_plugin.errors import ConfigError, PluginError
from rlax_plugin.presets import Preset

if TYPE_CHECKING:
    import jax


class Scores(NamedTuple):
    """What a model says of the target tokens, float32 [rows, length], temperature applied.

    Attributes:
      logprobs_bt: log pi_theta of the target.
      entropy_bt: of pi_theta over the whole vocabulary, nats.
    """

    logprobs_bt: jax.Array
    entropy_bt: jax.Array


MAX_LOG_RATIO = 40.0  # nats


def ratio_of(log_ratio_bt: jax.Array) -> jax.Array:
    """exp(min(x, 40)): a ratio that is finite, so that a weight or an advantage of 0 removes it.

    e^40 is 2e17; an infinite ratio would turn the product with 0, and its gradient, into NaN.
    """
    import jax.numpy as jnp

    return jnp.exp(jnp.minimum(log_ratio_bt, MAX_LOG_RATIO))


@dataclass(frozen=True)
class TokenInputs:
    """What a slot sees of each token; every array is [rows, length] and 0 on padding.

    Attributes:
      logprobs_bt: log pi_theta of the target token, with gradient, temperature applied.
      entropy_bt: of pi_theta, nats, with gradient.
      old_logprobs_bt: log pi_old, as ``old_policy`` says.
      trainer_logprobs_bt: log-probs before the update as the trainer computes them, to be compared
        with the sampler's: log pi_old, but with ``old_policy: sampler``, where none is computed,
        those of pi_theta, without gradient.
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
    def ratio_bt(self) -> jax.Array:
        """r = pi_theta / pi_old, with gradient; 1 on padding."""
        return ratio_of(self.logprobs_bt - self.old_logprobs_bt)

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


Ratio = Literal["policy/old", "policy/behaviour", "old/behaviour"]

TokenFunction = Callable[[TokenInputs], Any]  # -> [rows, length]
"""A slot. It may also have

- ``metrics(inputs) -> {name: array_bt}``: reported as ``objective/<name>``, the mean over tokens;
- ``ratio``: the ``Ratio`` it multiplies the term by; the product over the slots must make sense;
- ``corrects = True``: it keeps samples of old weights from dominating, by cutting or masking what
  their ratio to the sampler says.
"""
Aggregation = Callable[[TokenInputs], tuple[Any, Any]]  # -> (weights_bt, total weight)
Loss = Callable[[Scores, Mapping[str, Any]], tuple[Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Slots:
    """The parts of one objective, built, and its numbers.

    Attributes:
      aggregation: inputs -> (weights_bt, total weight).
      advantages: outcomes -> float64 [n] or [n, t]; numpy. Called by the controller, and by a
        trainer that adds token rewards.
      importance_weight: inputs -> weight_bt.
      grad_1: inputs -> term_bt, multiplied by the advantage.
      grad_2: inputs -> term_bt, added.
      corrections: inputs -> factor_bt, multiplied.
      algorithm: preset and config, merged.
      max_sequences: see ``TokenInputs``.
      updates_per_step: optimizer updates with one batch.
    """

    aggregation: Aggregation
    advantages: AdvantageSlot
    importance_weight: TokenFunction
    grad_1: TokenFunction
    grad_2: TokenFunction
    corrections: tuple[TokenFunction, ...]
    algorithm: Algorithm
    max_sequences: int = 1
    updates_per_step: int = 1

    @property
    def kl_in_loss(self) -> bool:
        return self.needs_reference and self.algorithm.kl.placement == "loss"

    @property
    def needs_reference(self) -> bool:
        return self.algorithm.kl.coefficient > 0

    @property
    def needs_old_logprobs(self) -> bool:
        """Whether the trainer adds ``rl_old_logprobs`` to a batch.

        With one update per batch, the weights before it are those that the loss sees.
        """
        source = self.algorithm.old_policy
        return source == "reprefill" or (source == "proximal" and self.updates_per_step > 1)


def algorithm_of(objective: Objective, preset: Preset) -> Algorithm:
    """Preset and config, merged; see ``config.Algorithm``."""
    merged = {name: getattr(preset, name) for name in Algorithm.model_fields}
    for name in objective.model_fields_set & merged.keys():
        given = getattr(objective, name)
        if name in ("kl", "overlong"):
            given = merged[name].model_copy(update=given.model_dump(exclude_unset=True))
        merged[name] = given
    return Algorithm(**merged)


def choices(algorithm: Algorithm) -> Iterator[tuple[str, str, Choice]]:
    """(config key below ``rlax.objective``, kind of part, choice) of every slot.

    Raises:
      PluginError: a preset leaves a slot empty.
    """
    for slot in ("aggregation", "importance_weight", "advantage", "grad_1", "grad_2"):
        choice = getattr(algorithm, slot)
        if choice is None:
            raise PluginError(f"the preset of the objective has nothing in its slot {slot!r}")
        yield slot, "gradient_term" if slot.startswith("grad") else slot, choice
    for index, choice in enumerate(algorithm.corrections):
        yield f"corrections.{index}", "correction", choice


def resolve(section: RlaxSection, part: Callable[[str, Choice, str], Any]) -> Slots:
    """Builds the slots that the config asks for: the preset's, where it does not override them.

    Args:
      section: the whole config.
      part: (kind, choice, dotted config key) -> the built part.

    Raises:
      ConfigError: ratios that do not multiply to one that makes sense; samples of old weights
        without a correction.
      PluginError: the preset's plug-in did not return a whole ``Preset``.
    """
    objective = section.objective
    preset = part("objective", Choice(name=objective.preset), "rlax.objective.preset")
    if not isinstance(preset, Preset):
        raise PluginError(f"objective {objective.preset!r} built {preset!r}, expected a Preset")
    algorithm = algorithm_of(objective, preset)
    built = {
        key: part(kind, choice, f"rlax.objective.{key}") for key, kind, choice in choices(algorithm)
    }
    names = {key: choice.name for key, _, choice in choices(algorithm)}
    _check_ratios(objective.preset, algorithm, built, names)
    _check_staleness(section, algorithm, built)
    advantage, max_new_tokens = built["advantage"], section.rollouts.max_new_tokens

    def advantages(outcomes: Outcomes) -> Any:
        rewards_n = shaped(
            outcomes.rewards_n, outcomes.lengths_n, algorithm.overlong, max_new_tokens
        )
        return advantage(replace(outcomes, rewards_n=rewards_n))

    return Slots(
        built["aggregation"],
        advantages,
        built["importance_weight"],
        built["grad_1"],
        built["grad_2"],
        tuple(built[f"corrections.{i}"] for i in range(len(algorithm.corrections))),
        algorithm,
        section.batches.sequences_per_row,
        objective.updates_per_step,
    )


def _check_ratios(
    preset: str, algorithm: Algorithm, built: Mapping[str, Any], names: Mapping[str, str]
) -> None:
    """pi/mu may enter once: whole, or as pi/pi_old times pi_old/mu."""
    used = [(key, part.ratio) for key, part in built.items() if getattr(part, "ratio", None)]
    numerators = [ratio for _, ratio in used]
    if algorithm.old_policy == "sampler":  # pi_old is mu, and the trainer computes no pi_old
        twice = len(used) > 1
    else:
        twice = len(set(numerators)) < len(used) or (
            "policy/behaviour" in numerators and len(used) > 1
        )
    if twice:
        where = " and in ".join(f"rlax.objective.{key} ({names[key]}: {r})" for key, r in used)
        raise ConfigError(
            "rlax.objective",
            preset,
            f"multiplies by the policy's ratio more than once, in {where}: keep one, or set "
            "rlax.objective.old_policy to proximal or reprefill, so that policy/old and "
            "old/behaviour are two things",
        )


def _check_staleness(section: RlaxSection, algorithm: Algorithm, built: Mapping[str, Any]) -> None:
    if section.staleness.max_staleness == 1 or section.objective.allow_uncorrected:
        return
    for part in built.values():
        if getattr(part, "corrects", False) and (
            getattr(part, "ratio", None) != "policy/old" or algorithm.old_policy == "sampler"
        ):
            return
    raise ConfigError(
        "rlax.objective.preset",
        section.objective.preset,
        f"corrects nothing for samples of older weights, and rlax.staleness.max_staleness = "
        f"{section.staleness.max_staleness} allows them; uncorrected clipping is known to collapse "
        "there. Use decoupled_ppo or aipo, or set rlax.objective.old_policy: proximal with "
        "corrections: [{name: truncated_importance_sampling}]; "
        "rlax.objective.allow_uncorrected: true trains all the same",
    )


def kl_estimate(estimator: str, log_ratio: Any, xp: Any) -> Any:
    """K1, K2 or K3 of d = log pi - log pi_ref; see ``config.KL``.

    Args:
      xp: ``numpy`` or ``jax.numpy``, as the array is.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return log_ratio**2 / 2
    return xp.exp(-log_ratio) + log_ratio - 1.0


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


def token_inputs(slots: Slots, scores: Scores, data: Mapping[str, Any]) -> TokenInputs:
    """What the slots see of a batch; the arguments are those of ``make_loss``'s function."""
    import jax
    import jax.numpy as jnp

    trained_bt = data["rl_mask"] > 0
    dtype = jnp.promote_types(scores.logprobs_bt.dtype, jnp.float32)

    def masked(x_bt: Any) -> jax.Array:
        # Selected before any arithmetic, so that neither value nor cotangent of padding counts.
        return jnp.where(trained_bt, jnp.asarray(x_bt).astype(dtype), 0.0)

    logprobs_bt = masked(scores.logprobs_bt)
    behaviour_logprobs_bt = masked(data["rl_behaviour_logprobs"])
    trainer_logprobs_bt = jax.lax.stop_gradient(logprobs_bt)
    if slots.needs_old_logprobs:
        known_bt = data["rl_old_known"] > 0
        trainer_logprobs_bt = jnp.where(
            known_bt, masked(data["rl_old_logprobs"]), trainer_logprobs_bt
        )
    from_sampler = slots.algorithm.old_policy == "sampler"
    return TokenInputs(
        logprobs_bt=logprobs_bt,
        entropy_bt=masked(scores.entropy_bt),
        old_logprobs_bt=behaviour_logprobs_bt if from_sampler else trainer_logprobs_bt,
        trainer_logprobs_bt=trainer_logprobs_bt,
        behaviour_logprobs_bt=behaviour_logprobs_bt,
        reference_logprobs_bt=masked(data["rl_reference_logprobs"] if slots.kl_in_loss else 0.0),
        advantages_bt=masked(data["rl_advantages"]),
        mask_bt=trained_bt.astype(dtype),
        sequence_bt=jnp.where(trained_bt, data["targets_segmentation"], 0),
        max_sequences=slots.max_sequences,
    )


def term_weights(slots: Slots, inputs: TokenInputs) -> tuple[Any, Any]:
    """agg * is * corrections per token, [rows, length], and the total weight of ``agg``."""
    weights_bt, weight = slots.aggregation(inputs)
    weights_bt = weights_bt * slots.importance_weight(inputs)
    for correction in slots.corrections:
        weights_bt = weights_bt * correction(inputs)
    return weights_bt, weight


def make_loss(slots: Slots) -> Loss:
    """Returns the function that the trainer differentiates.

    It is called as ``loss(scores, data)``: ``scores`` of ``data["targets"]`` under pi_theta;
    ``data`` the arrays of ``rlax_plugin.batches``, and what the trainer adds: ``rl_old_logprobs``
    with ``rl_old_known`` if ``slots.needs_old_logprobs``, ``rl_reference_logprobs`` if KL is in the
    loss. It returns

    - loss_sum: scalar, -J, to be minimised;
    - weight: scalar; the loss of a step is sum(loss_sum) / sum(weight);
    - metrics: sums (scalars, and ``gap_hist`` [64]) that add up over micro-batches;
      ``diagnostics.summarise`` turns them into numbers to report.

    All are float32, or float64 if ``scores`` are. What padding holds, even NaN, changes no bit of
    the three or of the gradient.
    """
    import chex
    import jax
    import jax.numpy as jnp

    stop = jax.lax.stop_gradient
    algorithm = slots.algorithm
    kl = algorithm.kl
    slot_functions = (slots.importance_weight, slots.grad_1, slots.grad_2, *slots.corrections)

    def loss(scores: Scores, data: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        names = ("rl_mask", "rl_advantages", "rl_behaviour_logprobs", "rl_staleness")
        chex.assert_rank(scores.logprobs_bt, 2)
        chex.assert_equal_shape([*scores, *(data[name] for name in names)])
        inputs = token_inputs(slots, scores, data)
        frozen = inputs.frozen()

        weights_bt, weight = term_weights(slots, frozen)
        grad_2_bt = slots.grad_2(inputs)
        if slots.kl_in_loss:
            log_ratio_bt = inputs.logprobs_bt - inputs.reference_logprobs_bt
            grad_2_bt -= kl.coefficient * kl_estimate(kl.estimator, log_ratio_bt, jnp)
        if algorithm.entropy_coefficient:
            grad_2_bt += algorithm.entropy_coefficient * inputs.entropy_bt
        terms_bt = inputs.advantages_bt * slots.grad_1(inputs) + grad_2_bt
        chex.assert_equal_shape([weights_bt, terms_bt, scores.logprobs_bt])
        loss_sum = -jnp.where(frozen.mask_bt > 0, stop(weights_bt) * terms_bt, 0.0).sum()

        metrics = diagnostics.sums(frozen, data["rl_staleness"])
        if slots.kl_in_loss:
            log_ratio_bt = frozen.logprobs_bt - frozen.reference_logprobs_bt
            for name in ("k1", "k3"):
                values_bt = kl_estimate(name, log_ratio_bt, jnp) * frozen.mask_bt
                metrics[f"objective/reference_kl_{name}"] = values_bt.sum()
        for function in slot_functions:
            measure = getattr(function, "metrics", None)
            for name, value_bt in (measure(frozen) if measure else {}).items():
                key = f"objective/{name}"
                if key in metrics:
                    raise PluginError(f"two slots of the objective report the metric {name!r}")
                metrics[key] = (value_bt * frozen.mask_bt).sum()
        return loss_sum, stop(jnp.asarray(weight, inputs.mask_bt.dtype)), metrics

    return loss
