"""One update of an objective, in numbers: the way a trainer computes it, on arrays of your own.

Suffixes name axes: ``_b`` is one per sample, ``_bt`` [samples, length].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin import advantages, diagnostics
from rlax_plugin.build import registry_for
from rlax_plugin.config import Choice, Objective, Overlong, RlaxSection, Rollouts
from rlax_plugin.objective import (
    Scores,
    Slots,
    kl_token_rewards,
    make_loss,
    term_weights,
    token_inputs,
)
from rlax_plugin.protocols import BuildContext
from rlax_plugin.validation import validate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


BUILT_IN = ("rlax_objectives",)  # the plug-in with the published algorithms


@dataclass(frozen=True)
class Evaluation:
    """What an objective makes of a batch.

    Attributes:
      loss: the scalar to minimise, sum over weight, as the preset's aggregation normalises it.
      advantages_bt: float64, 0 where the mask is 0.
      grad_bt: d loss / d logprobs_bt.
      weights_bt: agg * is * corrections, divided by the total weight: what each token's term is
        multiplied by.
      ratio_bt: pi_theta / pi_old; 1 where the mask is 0.
      metrics: see ``rlax_plugin.diagnostics.summarise``.
    """

    loss: float
    advantages_bt: np.ndarray
    grad_bt: np.ndarray
    weights_bt: np.ndarray
    ratio_bt: np.ndarray
    metrics: dict[str, float]


def evaluate_objective(
    name_or_config: str | Mapping[str, Any] | Objective,
    *,
    logprobs_bt: ArrayLike,
    behaviour_logprobs_bt: ArrayLike,
    rewards_b: ArrayLike,
    mask_bt: ArrayLike,
    group_size: int,
    reference_logprobs_bt: ArrayLike | None = None,
    proximal_logprobs_bt: ArrayLike | None = None,
    values_bt: ArrayLike | None = None,
    entropy_bt: ArrayLike | None = None,
    plugins: tuple[str, ...] = BUILT_IN,
    max_new_tokens: int | None = None,
) -> Evaluation:
    """Loss, advantages, gradient and metrics of one update with one batch.

    Everything goes the way that it goes in a run: the config is validated, the plug-ins are asked
    for the slots, advantages are computed in float64. The loss is float64 where JAX's x64 is on,
    else float32. Samples count as fresh, so that no preset is refused. ``mask_truncated`` changes
    nothing: why a sample ended is not known here.

    Args:
      name_or_config: a preset's name; or what would stand under ``rlax.objective``.
      logprobs_bt: log pi_theta of each token, nats.
      behaviour_logprobs_bt: log mu, the sampler's.
      rewards_b: one per sample; not read where the mask is empty.
      mask_bt: above 0 on the tokens of completions. A sample without any counts as one without a
        score. What the other arrays hold where it is 0 does not matter.
      group_size: consecutive rows that share a prompt.
      reference_logprobs_bt: log pi_ref, for KL.
      proximal_logprobs_bt: log pi_old where ``old_policy`` is proximal or reprefill. None: those of
        ``logprobs_bt``, as in a batch's first update.
      values_bt: a critic's, of the state before each token, for generalised advantages.
      entropy_bt: of pi_theta, nats, for the entropy bonus. None: 0, and not among the metrics.
      plugins: as ``rlax.plugins`` would list them.
      max_new_tokens: the limit that overlong punishment and constant lengths refer to. None: the
        length of the rows, and no sample is punished as overlong, unless ``overlong.max_tokens`` is
        set.

    Raises:
      ConfigError: the config is wrong; see ``objective.resolve``.
      ValueError: arrays of the wrong shape, rows that are not whole groups, rewards that are not
        finite, or a missing array that the objective needs.
      TrainingError: the advantage slot returned nonsense; see ``advantages.of_batch``.
    """
    given = {
        "logprobs_bt": logprobs_bt,
        "behaviour_logprobs_bt": behaviour_logprobs_bt,
        "mask_bt": mask_bt,
        "reference_logprobs_bt": reference_logprobs_bt,
        "proximal_logprobs_bt": proximal_logprobs_bt,
        "values_bt": values_bt,
        "entropy_bt": entropy_bt,
    }
    arrays = {k: np.asarray(v, np.float64) for k, v in given.items() if v is not None}
    rewards_b = np.asarray(rewards_b, np.float64)
    _check(arrays, rewards_b, group_size)
    length = arrays["mask_bt"].shape[1]
    section = section_of(
        name_or_config,
        plugins,
        rollouts=Rollouts(group_size=group_size, max_new_tokens=max_new_tokens or length),
    )
    # Only after a batch's first update do pi_old and pi_theta differ.
    updates_per_step = 1 if proximal_logprobs_bt is None else 2
    slots = replace(slots_of(section), updates_per_step=updates_per_step)
    overlong = slots.algorithm.overlong
    if max_new_tokens is None and overlong.penalty and not overlong.max_tokens:
        slots = replace(slots, advantages=slots_of(_without_limit(section)).advantages)
    if slots.needs_reference and reference_logprobs_bt is None:
        raise ValueError("the objective has KL to a reference policy: give reference_logprobs_bt")
    if slots.algorithm.entropy_coefficient and entropy_bt is None:
        raise ValueError("the objective has an entropy bonus: give entropy_bt")
    advantages_bt = _advantages(slots, arrays, rewards_b, group_size)
    return _evaluate(slots, arrays, advantages_bt)


def _check(arrays: Mapping[str, np.ndarray], rewards_b: np.ndarray, group_size: int) -> None:
    shape = arrays["mask_bt"].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"mask_bt has shape {shape}, expected [samples, length]")
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected that of mask_bt, {shape}")
    if rewards_b.shape != shape[:1]:
        raise ValueError(f"rewards_b has shape {rewards_b.shape}, expected {shape[:1]}")
    if group_size < 1 or shape[0] % group_size:
        raise ValueError(f"{shape[0]} samples are not groups of group_size = {group_size}")
    if not np.isfinite(rewards_b[(arrays["mask_bt"] > 0).any(axis=1)]).all():
        raise ValueError(f"rewards_b = {rewards_b}: expected finite numbers")


def section_of(
    name_or_config: str | Mapping[str, Any] | Objective,
    plugins: tuple[str, ...] = BUILT_IN,
    **sections: Any,
) -> RlaxSection:
    """A config that holds an objective, and no other part.

    Args:
      name_or_config, plugins: see ``evaluate_objective``.
      sections: others than ``objective``, e.g. ``rollouts``.

    Raises:
      ConfigError: the objective has an unknown key or a bad value.
    """
    return RlaxSection(
        plugins=plugins,
        prompt_source=Choice(name="none"),
        rewards=(Choice(name="none"),),
        # One update is asked for, whose rows need not be a run's.
        objective=_objective(name_or_config).model_copy(update={"mini_batches": 1}),
        **sections,
    )


def _objective(name_or_config: str | Mapping[str, Any] | Objective) -> Objective:
    if isinstance(name_or_config, str):
        name_or_config = {"preset": name_or_config}
    if isinstance(name_or_config, Objective):
        return name_or_config
    return validate(Objective, name_or_config, "rlax.objective")


def _without_limit(section: RlaxSection) -> RlaxSection:
    """Punishes no sample as overlong: how long they may be is not known."""
    objective = section.objective
    if objective.overlong.model_fields_set:
        raise ValueError("overlong is set: give max_new_tokens or overlong.max_tokens")
    objective = objective.model_copy(update={"overlong": Overlong(penalty=0.0)})
    return section.model_copy(update={"objective": objective})


def slots_of(section: RlaxSection) -> Slots:
    """The parts of a config's objective, built by the plug-ins that it lists."""
    return registry_for(section).slots(BuildContext.outside_run(section))


def _advantages(
    slots: Slots, arrays: Mapping[str, np.ndarray], rewards_b: np.ndarray, group_size: int
) -> np.ndarray:
    mask_bt = arrays["mask_bt"] > 0
    token_rewards_bt = None
    if slots.needs_reference and not slots.kl_in_loss:
        token_rewards_bt = kl_token_rewards(
            slots.algorithm.kl,
            arrays["behaviour_logprobs_bt"],
            arrays["reference_logprobs_bt"],
            mask_bt,
        )
    group_b = 1 + np.arange(len(rewards_b)) // group_size
    outcomes = {
        "rl_rewards": np.where(mask_bt, rewards_b[:, None], 0.0),
        "rl_group": np.where(mask_bt, group_b[:, None], 0),
        "targets_segmentation": np.ones(mask_bt.shape, np.int32),
    }
    return advantages.of_batch(
        slots.advantages, outcomes, token_rewards_bt, arrays.get("values_bt")
    )


def _evaluate(
    slots: Slots, arrays: Mapping[str, np.ndarray], advantages_bt: np.ndarray
) -> Evaluation:
    import jax
    import jax.numpy as jnp

    dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    shape = advantages_bt.shape
    ones_bt = np.ones(shape, np.int32)

    def array(name: str) -> jax.Array:
        return jnp.asarray(arrays.get(name, np.zeros(shape)), dtype)

    data = {
        "rl_mask": np.asarray(arrays["mask_bt"] > 0, np.int32),
        "rl_advantages": jnp.asarray(advantages_bt, dtype),
        "rl_behaviour_logprobs": array("behaviour_logprobs_bt"),
        "rl_staleness": ones_bt,
        "targets_segmentation": ones_bt,
        "rl_old_logprobs": array("proximal_logprobs_bt"),
        "rl_old_known": ones_bt * ("proximal_logprobs_bt" in arrays),
        "rl_reference_logprobs": array("reference_logprobs_bt"),
    }
    scores = Scores(array("logprobs_bt"), array("entropy_bt"))
    loss = make_loss(slots)

    def mean(logprobs_bt: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        loss_sum, weight, sums = loss(scores._replace(logprobs_bt=logprobs_bt), data)
        return loss_sum / jnp.maximum(weight, 1), sums  # nothing trains: 0

    (value, sums), grad_bt = jax.value_and_grad(mean, has_aux=True)(scores.logprobs_bt)
    inputs = token_inputs(slots, scores, data).frozen()
    weights_bt, weight = term_weights(slots, inputs)
    metrics = diagnostics.summarise(jax.device_get(sums))
    if "entropy_bt" not in arrays:
        metrics.pop("objective/entropy", None)
    return Evaluation(
        loss=float(value),
        advantages_bt=advantages_bt,
        grad_bt=np.asarray(grad_bt),
        weights_bt=np.asarray(weights_bt * inputs.mask_bt / jnp.maximum(weight, 1)),
        ratio_bt=np.asarray(inputs.ratio_bt),
        metrics=metrics,
    )
