"""The objective: one sum with five slots that plug-ins fill (RLAX, arXiv 2512.06392).

    J = sum_i sum_t sg[agg_it * is_it * corrections_it] * (sg[A_it] * grad_1_it + grad_2_it)

At the tokens of a demonstration in a group (``config.Guidance``), which no policy sampled, it is

    sg[agg_it] * sg[A_it] * pi_it / (pi_it + gamma)

with pi at the rollouts' temperature: LUFFY's off-policy term (arXiv 2504.14945), whose ratio has a
behaviour probability of 1.

``sg`` is stop-gradient and is applied here, so no slot can leak a gradient through a weight. KL and
entropy, if the config has them, are part of grad_2: - beta K_it + c H_it. A loss takes
log-probabilities, never a model, and returns a sum and a weight: sums over micro-batches divided by
the sum of weights are exact however unevenly the tokens are distributed.

JAX is imported when a loss is made, not with this module: ``rlax check`` resolves an objective
without it.

Suffixes name axes: ``_bt`` is [rows, length]. A row holds one sequence, or several if packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.config import KL, SLOTS, Algorithm, Choice, Objective, RlaxSection
from rlax_plugin.ports.kinds import AT_KEY
from rlax_plugin.training.objective import combinations, diagnostics, terms, weighing
from rlax_plugin.training.objective.adaptive_kl import KL_COEFFICIENT
from rlax_plugin.training.objective.advantages import LengthPenalised
from rlax_plugin.training.objective.batches import GUIDED, REWARD_PARTS
from rlax_plugin.training.objective.inputs import Ratio, SlotMetrics, TokenInputs, TokenOutputs
from rlax_plugin.training.objective.presets import Preset
from rlax_plugin.training.objective.ratios import kl_estimate, kl_token_rewards, ratio_of
from rlax_plugin.training.objective.slots import Loss, ObjectiveSlots
from rlax_plugin.training.objective.terms import LossTerm, Terms
from rlax_plugin.training.objective.update_sums import UPDATE_ARRAYS
from rlax_plugin.training.objective.weighing import term_weights

__all__ = [  # noqa: RUF022  what authors and trainers need, in the order of a reader
    "TokenInputs",
    "TokenOutputs",
    "LossTerm",
    "Ratio",
    "ratio_of",
    "kl_estimate",
    "kl_token_rewards",
    "Preset",
    "ObjectiveSlots",
    "algorithm_of",
    "choices",
    "resolve",
    "token_inputs",
    "term_weights",
    "make_loss",
]


_OF_BATCH = (
    "rl_group",
    "rl_group_size",
    "rl_sample",
    "rl_sample_length",
    "rl_total_reward",
    "rl_step",
    REWARD_PARTS,
    *UPDATE_ARRAYS,
)
"""The arrays of ``TokenInputs.batch``."""


def algorithm_of(objective: Objective, preset: Preset) -> Algorithm:
    """Returns preset and config, merged; see ``config.Algorithm``."""
    merged = {name: getattr(preset, name) for name in Algorithm.model_fields}
    for name in objective.model_fields_set & merged.keys():
        given = getattr(objective, name)
        if given is None:  # a slot that is left to the preset
            continue
        preset_s = merged[name]
        if name in ("kl", "overlong"):
            own = {key: getattr(given, key) for key in given.model_fields_set}
            given = preset_s.model_copy(update=own)
        elif _same_part(given, preset_s):
            chosen = given.name or preset_s.name
            given = Choice(name=chosen, **preset_s.options | given.options)
        merged[name] = given
    return Algorithm(**merged)


def _same_part(given: Any, preset_s: Any) -> bool:
    """True if a config's options belong to the part that the preset chooses."""
    if not isinstance(given, Choice) or not preset_s:
        return False
    if given.name in ("", preset_s.name):
        return True
    # A preset's part has its plug-in's name where that matters: see ``Registry.part``.
    return preset_s.name == given.plain_name


def kind_of(slot: str) -> str:
    """Returns the kind of part that a slot holds."""
    return AT_KEY[f"rlax.objective.{slot}"].name


def choices(algorithm: Algorithm) -> Iterator[tuple[str, str, Choice]]:
    """Yields (config key below ``rlax.objective``, kind of part, choice) of every slot.

    Raises:
      PluginError: a preset leaves a slot empty.
    """
    for slot in SLOTS:
        choice = getattr(algorithm, slot)
        if choice is None or not choice.name:
            raise PluginError(f"the preset of the objective has no part in its slot {slot!r}")
        yield slot, kind_of(slot), choice
    for index, choice in enumerate(algorithm.corrections):
        yield f"corrections.{index}", "correction", choice
    if algorithm.kl.aggregation is not None:
        yield "kl.aggregation", "aggregation", algorithm.kl.aggregation


def resolve(section: RlaxSection, part: Callable[[str, Choice, str], Any]) -> ObjectiveSlots:
    """Builds the slots of the config's objective: the preset's, except those that it overrides.

    Args:
      section: the whole config.
      part: (kind, choice, dotted config key) -> the built part.

    Raises:
      ConfigError: a combination that makes no sense, see ``combinations.check``.
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
    combinations.check(section, algorithm, built)
    advantages = LengthPenalised(built["advantage"], algorithm.overlong, section.sampled_tokens)
    return ObjectiveSlots(
        built["aggregation"],
        advantages,
        built["importance_weight"],
        built["grad_1"],
        built["grad_2"],
        tuple(built[f"corrections.{i}"] for i in range(len(algorithm.corrections))),
        algorithm,
        section.batches.sequences_per_row,
        objective.updates_per_step,
        section.staleness.max_staleness,
        bool(section.signals),
        kl_aggregation=built.get("kl.aggregation"),
        gamma=objective.guidance and objective.guidance.gamma,
    )


def token_inputs(
    slots: ObjectiveSlots, outputs: TokenOutputs, data: Mapping[str, Any]
) -> TokenInputs:
    """Returns the slots' inputs for a batch; arguments are those of ``make_loss``'s function."""
    import jax
    import jax.numpy as jnp

    trained_bt = data["rl_mask"] > 0
    dtype = jnp.promote_types(outputs.logprobs_bt.dtype, jnp.float32)

    def masked(x_bt: Any) -> jax.Array:
        # Selected before any arithmetic, so that neither value nor cotangent of padding counts.
        return jnp.where(trained_bt, jnp.asarray(x_bt).astype(dtype), 0.0)

    def selected(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        x = x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return jnp.where(trained_bt.reshape(trained_bt.shape + (1,) * (x.ndim - 2)), x, 0)

    logprobs_bt = masked(outputs.logprobs_bt)
    behaviour_logprobs_bt = masked(data["rl_behaviour_logprobs"])
    trainer_logprobs_bt = jax.lax.stop_gradient(logprobs_bt)
    if slots.needs_old_logprobs:
        known_bt = data["rl_old_known"] > 0
        trainer_logprobs_bt = jnp.where(
            known_bt, masked(data["rl_old_logprobs"]), trainer_logprobs_bt
        )
    reference_logprobs_bt = masked(data["rl_reference_logprobs"] if slots.kl_in_loss else 0.0)
    if slots.gamma is not None:
        # Nobody sampled them: every ratio is 1, also in sums over a sequence, and the KL is 0.
        guided_bt = _guided(data)
        own_bt = jax.lax.stop_gradient(logprobs_bt)
        behaviour_logprobs_bt = jnp.where(guided_bt, own_bt, behaviour_logprobs_bt)
        trainer_logprobs_bt = jnp.where(guided_bt, own_bt, trainer_logprobs_bt)
        reference_logprobs_bt = jnp.where(guided_bt, logprobs_bt, reference_logprobs_bt)
    from_sampler = slots.algorithm.old_policy == "sampler"
    return TokenInputs(
        logprobs_bt=logprobs_bt,
        entropy_bt=masked(outputs.entropy_bt),
        old_logprobs_bt=behaviour_logprobs_bt if from_sampler else trainer_logprobs_bt,
        trainer_logprobs_bt=trainer_logprobs_bt,
        behaviour_logprobs_bt=behaviour_logprobs_bt,
        reference_logprobs_bt=reference_logprobs_bt,
        advantages_bt=masked(data["rl_advantages"]),
        mask_bt=trained_bt.astype(dtype),
        sequence_bt=jnp.where(trained_bt, data["targets_segmentation"], 0),
        max_sequences=slots.max_sequences,
        batch={name: selected(data[name]) for name in _OF_BATCH if name in data},
        steps=slots.steps,
    )


def _guided(data: Mapping[str, Any]) -> Any:
    """Returns the trained tokens of demonstrations in groups, bool [rows, length]."""
    return (data[GUIDED] > 0) & (data["rl_mask"] > 0)


def loss_weight(slots: ObjectiveSlots, data: Mapping[str, Any]) -> Any:
    """The weight that the loss returns for a batch, without a model's outputs.

    Raises:
      ConfigError: it depends on the outputs.
    """
    check_weight_is_known(slots)
    return slots.aggregation(_without_outputs(slots, data))[1]


def check_weight_is_known(slots: ObjectiveSlots) -> None:
    """Raises ConfigError if the weight of a loss depends on a model's outputs.

    To be called for terms of the loss with weights of their own and gradient accumulation.
    """
    if weighing.counts_kept(slots.aggregation):
        raise ConfigError(
            "rlax.objective.aggregation.count",
            "kept",
            "cannot be combined with a term of the loss that has a weight of its own (of a signal, "
            "kl.aggregation, or rlax.trainer.demonstrations) and gradient accumulation: the total "
            "weight of an update is not known before its last micro-batch",
        )


def _without_outputs(slots: ObjectiveSlots, data: Mapping[str, Any]) -> TokenInputs:
    """Returns the inputs of a batch whose log-probs are 0."""
    import jax.numpy as jnp

    nothing_bt = jnp.zeros(data["rl_mask"].shape, jnp.float32)
    return token_inputs(slots, TokenOutputs(nothing_bt, nothing_bt), data)


def own_terms(slots: ObjectiveSlots) -> dict[str, LossTerm]:
    """Returns the terms of the loss that the objective adds beside its sum.

    It is the KL with an aggregation of its own: a mean that is divided by another weight.
    """
    if slots.kl_aggregation is None or not slots.kl_in_loss:
        return {}
    aggregation = slots.kl_aggregation

    def total(outputs: TokenOutputs, data: Mapping[str, Any]) -> Any:
        import jax
        import jax.numpy as jnp

        inputs = token_inputs(slots, outputs, data)
        frozen, seen = inputs.frozen(), weighing.seen_inputs(slots, inputs)
        weights_bt, _ = aggregation(seen.frozen())
        if slots.algorithm.kl.weighted:
            weights_bt = weighing.with_factors(weights_bt, slots, frozen, seen.frozen())
        kl_bt = jax.lax.stop_gradient(weights_bt) * _penalty(slots, seen, data)
        return jnp.where(seen.mask_bt > 0, kl_bt, 0.0).sum()

    def weight(data: Mapping[str, Any]) -> Any:
        return aggregation(_without_outputs(slots, data))[1]

    return {KL_TERM: LossTerm(total, weight)}


def _penalty(slots: ObjectiveSlots, inputs: TokenInputs, data: Mapping[str, Any]) -> Any:
    """Returns beta K per token."""
    kl = slots.algorithm.kl
    adaptive = kl.adaptive is not None
    beta = data[KL_COEFFICIENT] if adaptive else inputs.value(kl.coefficient)
    return beta * kl_of_tokens(kl, inputs)


def make_loss(slots: ObjectiveSlots, added: Terms | None = None) -> Loss:
    """Returns the function that the trainer differentiates.

    Args:
      added: terms beside the objective, such as those of signals: sum / weight of each is added to
        the loss of an update, and reported as ``objective/<name>``.

    It is called as ``loss(outputs, data)``: ``outputs`` of ``data["targets"]`` under pi_theta;
    ``data`` the arrays of ``training/objective/batches.py``, and the trainer's additions:
    ``rl_old_logprobs`` with ``rl_old_known`` if ``slots.needs_old_logprobs``,
    ``rl_reference_logprobs`` if KL is in the loss, with ``rl_kl_coefficient`` if it is adaptive.
    It returns

    - loss_sum: scalar, -J, to be minimised;
    - weight: scalar; the loss of a step is sum(loss_sum) / sum(weight);
    - metrics: sums that add up over micro-batches: scalars, ``gap_hist`` [14, 64], and those of
      ``diagnostics.GROUP_GAPS`` [256] if the batch has ``rl_group``;
      ``diagnostics.summarise`` turns them into numbers to report.

    All are float32, or float64 if ``outputs`` are. The contents of padding, even NaN, change no bit
    of the three or of the gradient.
    """
    import chex
    import jax
    import jax.numpy as jnp

    added = own_terms(slots) | dict(added or {})
    stop = jax.lax.stop_gradient
    algorithm = slots.algorithm
    kl = algorithm.kl
    reporting = [
        *(("", part) for part in (slots.importance_weight, slots.grad_1, *slots.corrections)),
        ("grad_2_", slots.grad_2),  # perhaps the same part as grad_1
    ]

    def loss(outputs: TokenOutputs, data: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        names = ("rl_mask", "rl_advantages", "rl_behaviour_logprobs", "rl_staleness")
        chex.assert_rank(outputs.logprobs_bt, 2)
        told = (outputs.logprobs_bt, outputs.entropy_bt)
        chex.assert_equal_shape([*told, *(data[name] for name in names)])
        inputs = token_inputs(slots, outputs, data)
        frozen, seen = inputs.frozen(), weighing.seen_inputs(slots, inputs)

        agg_bt, weight = weighing.aggregated(slots, seen.frozen())
        weights_bt = weighing.with_factors(agg_bt, slots, frozen, seen.frozen())
        grad_1_bt, grad_2_bt = slots.grad_1(seen), slots.grad_2(seen)
        weighing.check_shape("grad_1", grad_1_bt, inputs)
        weighing.check_shape("grad_2", grad_2_bt, inputs)
        kl_bt = _penalty(slots, seen, data) if slots.kl_in_loss else None
        if kl_bt is not None and kl.weighted and slots.kl_aggregation is None:
            grad_2_bt -= kl_bt
        if algorithm.entropy_coefficient:
            grad_2_bt += inputs.value(algorithm.entropy_coefficient) * seen.entropy_bt
        terms_bt = seen.advantages_bt * grad_1_bt + grad_2_bt
        of_policy = frozen
        if slots.gamma is not None:
            guided_bt = _guided(data)
            shaped_bt = jax.nn.sigmoid(seen.logprobs_bt - math.log(slots.gamma))
            terms_bt = jnp.where(guided_bt, seen.advantages_bt * shaped_bt, terms_bt)
            weights_bt = jnp.where(guided_bt, agg_bt, weights_bt)
            of_policy = frozen.only((frozen.mask_bt > 0) & ~guided_bt)
        loss_sum = -jnp.where(seen.mask_bt > 0, stop(weights_bt) * terms_bt, 0.0).sum()
        if kl_bt is not None and not kl.weighted and slots.kl_aggregation is None:
            loss_sum += jnp.where(seen.mask_bt > 0, stop(agg_bt) * kl_bt, 0.0).sum()

        positions_bt = data.get("targets_position")
        metrics = diagnostics.sums(of_policy, data["rl_staleness"], positions_bt)
        if slots.kl_in_loss:
            log_ratio_bt = of_policy.logprobs_bt - of_policy.reference_logprobs_bt
            for name in ("k1", "k3"):
                values_bt = kl_estimate(name, log_ratio_bt, jnp) * of_policy.mask_bt
                metrics[f"objective/reference_kl_{name}"] = values_bt.sum()
        for prefix, function in reporting:
            measured = function.metrics(of_policy) if isinstance(function, SlotMetrics) else {}
            for name, value_bt in measured.items():
                key = f"objective/{prefix}{name}"
                if key in metrics or key in diagnostics.DERIVED:
                    raise PluginError(f"two slots of the objective report the metric {name!r}")
                metrics[key] = (value_bt * of_policy.mask_bt).sum()
        weight = stop(jnp.asarray(weight, inputs.mask_bt.dtype))
        if added:
            of_update = added
            if KL_TERM in of_update and slots.kl_aggregation is not None:
                # Which tokens count may depend on the outputs, which a weight does not see.
                counted = slots.kl_aggregation(seen.frozen())[1]
                of_update = added | {KL_TERM: replace(added[KL_TERM], weight=lambda _: counted)}
            for name in added:
                if (key := f"objective/{name}") in metrics or key in diagnostics.DERIVED:
                    reason = f"a term of the loss is named {name!r}, as a metric of the objective"
                    raise PluginError(reason)
            total, sums = terms.added(of_update, outputs, data, weight, loss_sum.dtype)
            loss_sum, metrics = loss_sum + total, metrics | sums
        return loss_sum, weight, metrics

    return loss


KL_TERM = "kl_penalty"
"""The name of the term of the loss that is the KL with an aggregation of its own."""


def kl_of_tokens(kl: KL, inputs: TokenInputs) -> Any:
    """Returns the KL estimate of each token, without beta; see ``config.KL``.

    ``gradient: k2`` is verl's ``k3+``, ``score_function`` is NeMo-RL's
    (https://arxiv.org/abs/2506.09477), and ``times: ratio`` is the unbiased estimate of
    DeepSeek-V3.2 (https://arxiv.org/abs/2512.02556), also in TRL, slime and cosmos-rl.
    """
    import jax
    import jax.numpy as jnp

    stop = jax.lax.stop_gradient
    log_ratio_bt = inputs.logprobs_bt - inputs.reference_logprobs_bt
    within_bt: Any = True
    if kl.clamp_log_ratio is not None:
        within_bt = jnp.abs(log_ratio_bt) <= kl.clamp_log_ratio
        log_ratio_bt = log_ratio_bt.clip(-kl.clamp_log_ratio, kl.clamp_log_ratio)
    estimate_bt = kl_estimate(kl.estimator, log_ratio_bt, jnp)
    factor_bt: Any = None
    if kl.gradient == "score_function":
        factor_bt = jnp.exp(inputs.logprobs_bt - stop(inputs.logprobs_bt))
    if kl.times is not None:
        ratio_bt = _ratio(kl, inputs)
        factor_bt = ratio_bt if factor_bt is None else factor_bt * ratio_bt
    if factor_bt is not None:
        # Clamped log ratios have no gradient at all.
        estimate_bt = estimate_bt * jnp.where(within_bt, factor_bt, stop(factor_bt))
    if kl.clamp is not None:
        estimate_bt = estimate_bt.clip(-kl.clamp, kl.clamp)
    if kl.gradient == "k2":
        d_bt = inputs.logprobs_bt - inputs.reference_logprobs_bt
        square_bt = kl_estimate("k2", d_bt, jnp)
        return square_bt - stop(square_bt) + stop(estimate_bt)
    return estimate_bt


def _ratio(kl: KL, inputs: TokenInputs) -> Any:
    if kl.times == "sequence_ratio":
        return ratio_of(inputs.sequence_mean(inputs.log_ratio_bt))
    if kl.times == "behaviour_ratio":
        return ratio_of(inputs.logprobs_bt - inputs.behaviour_logprobs_bt)
    return inputs.ratio_bt
