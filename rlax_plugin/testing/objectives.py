"""One update of an objective, in numbers: computed as in a trainer, on arrays of your own.

Suffixes name axes: ``_b`` is one per sample, ``_bt`` [samples, length].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_plugin.build import registry_for
from rlax_plugin.config import (
    Choice,
    Objective,
    Overlong,
    RewardChoice,
    RlaxSection,
    Rollouts,
    value_at,
)
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.training.objective import advantages, diagnostics
from rlax_plugin.training.objective.loss import (
    ObjectiveSlots,
    TokenOutputs,
    kl_token_rewards,
    make_loss,
    term_weights,
    token_inputs,
)
from rlax_plugin.training.objective.ratios import kl_value
from rlax_plugin.training.objective.update_sums import update_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# The product of the largest rlax.reward_limit and weight: its square is a float32.
_LARGEST_REWARD = 1e15


@dataclass(frozen=True)
class Evaluation:
    """The results of an objective for a batch.

    Attributes:
      loss: the scalar to minimise: the sum over tokens divided by what the preset's aggregation
        divides by.
      advantages_bt: float64, 0 where the mask is 0.
      grad_bt: d loss / d logprobs_bt.
      weights_bt: the factor of each token's term: aggregation weight * importance weight *
        corrections, divided by the total weight.
      ratio_bt: pi_theta / pi_old; 1 where the mask is 0.
      returns_bt: float64, return-to-go: the sample's reward minus its overlong penalty, plus the
        KL rewards of this token and those after it, undiscounted; before any baseline, std or
        whitening. 0 where the mask is 0.
      kl_bt: float64, the config's estimator of the KL to the reference, nats, without its
        coefficient: of pi_theta, or of mu with KL in the reward. 0 where the mask is 0; None
        without KL.
      metrics: see ``rlax_plugin.training.objective.diagnostics.summarise``.

    All but ``loss`` and ``metrics`` are [samples, length].
    """

    loss: float
    advantages_bt: np.ndarray
    grad_bt: np.ndarray
    weights_bt: np.ndarray
    ratio_bt: np.ndarray
    returns_bt: np.ndarray
    kl_bt: np.ndarray | None
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
    plugins: tuple[str, ...] = (),
    max_new_tokens: int | None = None,
    step: int = 1,
    steps: int = 1,
    jit: bool = False,
) -> Evaluation:
    """Loss, advantages, gradient and metrics of one update with one batch.

    Everything is computed as in a run: the config is validated, the plug-ins provide the slots,
    advantages are computed in float64. The loss is float64 if JAX's x64 is on, else float32.
    Samples count as fresh, so that no preset is rejected. ``mask_truncated`` has no effect, because
    the reason why a sample ended is not known here.

    Args:
      name_or_config: a preset's name; or the content of ``rlax.objective``.
      logprobs_bt: log pi_theta of each token, nats.
      behaviour_logprobs_bt: log mu, the sampler's.
      rewards_b: one per sample; not read where the mask is empty.
      mask_bt: above 0 on the tokens of completions. A sample without any counts as one without a
        score. The contents of the other arrays where it is 0 do not matter.
      group_size: consecutive rows that share a prompt.
      reference_logprobs_bt: log pi_ref, for KL. This array and the next two are rejected if the
        config does not use them: a comparison without them would look right by mistake.
      proximal_logprobs_bt: log pi_old if ``old_policy`` is proximal or reprefill. None: equal to
        ``logprobs_bt``, as in a batch's first update.
      values_bt: a critic's, of the state before each token, for generalised advantages.
      entropy_bt: of pi_theta, nats, for the entropy bonus and slots that read it. None: 0, and not
        among the metrics.
      plugins: plug-ins besides the built-in ones, as in ``rlax.plugins``.
      max_new_tokens: the limit that overlong punishment and constant lengths refer to. None: the
        length of the rows, and no sample is punished as overlong, unless ``overlong.max_tokens`` is
        set.
      step, steps: the RL step, from 1, and the RL steps of the whole run.
      jit: True to compute loss, gradient and weights under ``jax.jit``, as trainers do. It takes a
        second to compile, and finds a slot that cannot be compiled. False runs operation by
        operation, which lets you look inside a slot.
    Raises:
      ConfigError: the config is wrong; see ``objective.resolve``.
      ValueError: arrays of the wrong shape, rows that are not whole groups, rewards that are not
        finite, a missing array that the objective needs, or one that it does not use.
      TrainingError: the advantage slot returned invalid values; see ``advantages.of_batch``.
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
    _check_arrays(arrays, rewards_b, group_size)
    shape = arrays["mask_bt"].shape
    section = section_of(
        name_or_config,
        plugins,
        rollouts=Rollouts(group_size=group_size, max_new_tokens=max_new_tokens or shape[1]),
    )
    # Only after a batch's first update do pi_old and pi_theta differ.
    updates_per_step = 1 if proximal_logprobs_bt is None else 2
    further = {"updates_per_step": updates_per_step, "steps": steps}
    slots = replace(slots_of(section), **further)
    overlong = slots.algorithm.overlong
    if max_new_tokens is None and overlong.penalty and not overlong.max_tokens:
        slots = replace(slots_of(_without_limit(section)), **further)
    if unused := unused_arrays(slots, arrays, group_size):
        raise ValueError("; ".join(unused.values()))
    if slots.needs_reference and reference_logprobs_bt is None:
        raise ValueError("the objective has KL to a reference policy: give reference_logprobs_bt")
    if slots.algorithm.entropy_coefficient and entropy_bt is None:
        raise ValueError("the objective has an entropy bonus: give entropy_bt")
    advantages_bt, returns_bt = _advantages(
        slots, arrays, rewards_b, group_size, section.rollouts.max_new_tokens, step
    )
    samples = _of_samples(arrays["mask_bt"] > 0, rewards_b, group_size, step)
    return _evaluate(slots, arrays, samples, advantages_bt, returns_bt, jit)


def section_of(
    name_or_config: str | Mapping[str, Any] | Objective,
    plugins: tuple[str, ...] = (),
    **sections: Any,
) -> RlaxSection:
    """A config with only an objective.

    Args:
      name_or_config, plugins: see ``evaluate_objective``.
      sections: sections other than ``objective``, e.g. ``rollouts``.

    Raises:
      ConfigError: the objective has an unknown key or a bad value.
    """
    return RlaxSection(
        plugins=plugins,
        prompt_source=Choice(name="none"),
        rewards=(RewardChoice(name="none"),),
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
    """Turns overlong punishment off, because the maximum length is not known."""
    objective = section.objective
    if objective.overlong.model_fields_set:
        raise ValueError("overlong is set: give max_new_tokens or overlong.max_tokens")
    objective = objective.model_copy(update={"overlong": Overlong(penalty=0.0)})
    return section.model_copy(update={"objective": objective})


def slots_of(section: RlaxSection) -> ObjectiveSlots:
    """The parts of a config's objective, built by the plug-ins that it lists."""
    return registry_for(section).slots(BuildContext.outside_run(section))


def unused_arrays(slots: ObjectiveSlots, names: Collection[str], group_size: int) -> dict[str, str]:
    """Optional arrays of ``evaluate_objective`` that have no effect.

    Args:
      names: names of the arrays.

    Returns:
      Name -> sentence that says so, and names the settings that would use it.
    """
    algorithm = slots.algorithm
    advantage = algorithm.advantage.name if algorithm.advantage else ""
    checks: dict[str, tuple[Callable[[], bool], str]] = {
        "reference_logprobs_bt": (
            lambda: slots.needs_reference,
            "there is no KL to a reference policy; kl: {coefficient: 0.04} would use it",
        ),
        "proximal_logprobs_bt": (
            lambda: algorithm.old_policy != "sampler",
            "pi_old is behaviour_logprobs_bt; old_policy: proximal would use it",
        ),
        "values_bt": (
            lambda: advantages.reads_values(slots.advantages, group_size),
            f"the advantage {advantage} reads no values; advantage: {{name: gae}} would use them",
        ),
    }
    return {
        name: f"{name} has no effect: {reason}"
        for name, (used, reason) in checks.items()
        if name in names and not used()
    }


def _advantages(
    slots: ObjectiveSlots,
    arrays: Mapping[str, np.ndarray],
    rewards_b: np.ndarray,
    group_size: int,
    max_new_tokens: int,
    step: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and returns."""
    mask_bt = arrays["mask_bt"] > 0
    token_rewards_bt = None
    if slots.needs_reference and not slots.kl_in_loss:
        token_rewards_bt = kl_token_rewards(
            slots.algorithm.kl.at(step),
            arrays["behaviour_logprobs_bt"],
            arrays["reference_logprobs_bt"],
            mask_bt,
        )
    group_b = 1 + np.arange(len(rewards_b)) // group_size
    outcomes = {
        "rl_rewards": np.where(mask_bt, rewards_b[:, None], 0.0),
        "rl_group": np.where(mask_bt, group_b[:, None], 0),
        "rl_episode": np.where(mask_bt, 1 + np.arange(len(rewards_b))[:, None], 0),
        "rl_place": np.where(mask_bt, np.cumsum(mask_bt, axis=1), 0),
    }

    def returns(outcomes: advantages.Outcomes) -> np.ndarray:
        rewards_n = advantages.shaped(
            outcomes.rewards_n, outcomes.lengths_n, slots.algorithm.overlong, max_new_tokens
        )
        return replace(outcomes, rewards_n=rewards_n).returns_nt

    values_bt = arrays.get("values_bt")
    found_bt = advantages.of_batch(slots.advantages, outcomes, token_rewards_bt, values_bt)
    return found_bt, advantages.of_batch(returns, outcomes, token_rewards_bt)


def _kl(slots: ObjectiveSlots, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    if not slots.needs_reference:
        return None
    policy = "logprobs_bt" if slots.kl_in_loss else "behaviour_logprobs_bt"
    log_ratio_bt = np.where(
        arrays["mask_bt"] > 0, arrays[policy] - arrays["reference_logprobs_bt"], 0.0
    )
    return kl_value(slots.algorithm.kl, log_ratio_bt)


def _evaluate(
    slots: ObjectiveSlots,
    arrays: Mapping[str, np.ndarray],
    samples: Mapping[str, np.ndarray],
    advantages_bt: np.ndarray,
    returns_bt: np.ndarray,
    jit: bool,
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
        "rl_kl_coefficient": jnp.full(shape, value_at(slots.algorithm.kl.coefficient, 1), dtype),
        **samples,
    }
    loss = make_loss(slots)

    def update(outputs: TokenOutputs, data: Mapping[str, Any]) -> tuple[Any, ...]:
        def mean(logprobs_bt: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
            loss_sum, weight, sums = loss(outputs._replace(logprobs_bt=logprobs_bt), data)
            return loss_sum / jnp.maximum(weight, 1), sums  # nothing trains: 0

        (value, sums), grad_bt = jax.value_and_grad(mean, has_aux=True)(outputs.logprobs_bt)
        inputs = token_inputs(slots, outputs, data).frozen()
        weights_bt, weight = term_weights(slots, inputs)
        weights_bt = weights_bt * inputs.mask_bt / jnp.maximum(weight, 1)
        return value, grad_bt, weights_bt, inputs.ratio_bt, sums

    outputs = TokenOutputs(array("logprobs_bt"), array("entropy_bt"))
    found = (jax.jit(update) if jit else update)(outputs, data)
    value, grad_bt, weights_bt, ratio_bt, sums = jax.device_get(found)
    metrics = diagnostics.summarise(sums)
    if "entropy_bt" not in arrays:
        metrics.pop("objective/entropy", None)
    return Evaluation(
        loss=float(value),
        advantages_bt=advantages_bt,
        grad_bt=np.asarray(grad_bt),
        weights_bt=np.asarray(weights_bt),
        ratio_bt=np.asarray(ratio_bt),
        returns_bt=returns_bt,
        kl_bt=_kl(slots, arrays),
        metrics=metrics,
    )


def _of_samples(
    mask_bt: np.ndarray, rewards_b: np.ndarray, group_size: int, step: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of the batch that say of each token to which sample it belongs."""
    place_b = np.arange(len(rewards_b))
    scored_bg = mask_bt.any(axis=1).reshape(-1, group_size)
    by_sample: dict[str, np.ndarray] = {
        "rl_group": 1 + place_b // group_size,
        "rl_group_size": scored_bg.sum(axis=1).repeat(group_size),
        "rl_sample": place_b % group_size,
        "rl_sample_length": mask_bt.sum(axis=1),
        "rl_total_reward": rewards_b,
        "rl_step": np.full(len(rewards_b), step),
    }
    arrays = {name: np.where(mask_bt, x_b[:, None], 0) for name, x_b in by_sample.items()}
    return arrays | update_sums(arrays | {"rl_mask": mask_bt, "targets_segmentation": mask_bt * 1})


def _check_arrays(arrays: Mapping[str, np.ndarray], rewards_b: np.ndarray, group_size: int) -> None:
    """Raises ValueError unless the arrays are those of whole groups with finite rewards."""
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
    read_b = rewards_b[(arrays["mask_bt"] > 0).any(axis=1)]
    if not np.isfinite(read_b).all() or np.abs(read_b).max(initial=0) > _LARGEST_REWARD:
        reason = f"expected finite numbers of at most {_LARGEST_REWARD:g}, as in a run"
        raise ValueError(f"rewards_b = {rewards_b}: {reason}")
