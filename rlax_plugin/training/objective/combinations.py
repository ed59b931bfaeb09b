"""Rejects combinations of an objective's parts and numbers that make no sense.

A part says itself which ratio it multiplies the term by (``RatioFactor``), and whether it keeps
samples of old weights from dominating (``StaleCorrection``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, get_args

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.config import Algorithm, Choice, RlaxSection
from rlax_plugin.training.objective import adaptive_kl
from rlax_plugin.training.objective.inputs import Imitation, Ratio, RatioFactor, StaleCorrection
from rlax_plugin.training.objective.slots import ObjectiveSlots
from rlax_plugin.training.objective.weighing import counts_kept

# By old policy: the ratios in which the age of a sample shows, None for a mask. With reprefill
# pi_old is the policy that generated the sample, and pi_old/mu the trainer's view against the
# sampler's; of samples older than the one copy that is kept, pi_old is the proximal policy.
_SHOWS_AGE: Mapping[str, tuple[str | None, ...]] = {
    "sampler": ("policy/old", "policy/behaviour", "old/behaviour", None),
    "proximal": ("policy/behaviour", "old/behaviour", None),
    "reprefill": ("policy/old", "policy/behaviour"),
}


def check(section: RlaxSection, algorithm: Algorithm, built: Mapping[str, Any]) -> None:
    """Rejects configs that contradict themselves.

    Args:
      section: the config.
      algorithm: preset and config, merged.
      built: config key below ``rlax.objective`` -> part, of every slot.

    Raises:
      ConfigError: a ratio enters twice; samples of old weights or of another run are not
        corrected, or several updates use a term without a ratio; options that contradict each other
        or have no effect.
    """
    _check_ratios(section, algorithm, built)
    _check_guidance(section, algorithm)
    _check_options(section, algorithm)
    if counts_kept(built.get("kl.aggregation")) and not counts_kept(built["aggregation"]):
        key, reason = "rlax.objective.kl.aggregation.count", "has no effect by itself: set "
        raise ConfigError(key, "kept", f"{reason}rlax.objective.aggregation.count, which decides")
    advantage, logged = built["advantage"], section.trains_on_log
    imitates = isinstance(advantage, Imitation) and advantage.imitates
    if section.objective.allow_uncorrected or (logged and imitates):
        return
    preset, most = section.objective.preset, section.staleness.max_staleness
    # What multiplies the advantage; grad_2 is another term.
    parts = [part for key, part in built.items() if key != "grad_2"]
    shows_age = _SHOWS_AGE[algorithm.old_policy]
    if algorithm.old_policy == "reprefill" and most > section.staleness.reload_every + 1:
        shows_age = ("policy/behaviour",)
    corrected = _corrects(parts, shows_age)
    if logged and not corrected:
        raise ConfigError(
            "rlax.objective.preset",
            preset,
            f"has no correction for samples of another policy with old_policy: "
            f"{algorithm.old_policy}, which rlax.logged_samples are. Use behaviour_cloning or awr, "
            "which imitate, or aipo; rlax.objective.allow_uncorrected: true switches this check "
            "off",
        )
    if most > 1 and not corrected:
        raise ConfigError(
            "rlax.objective.preset",
            preset,
            f"has no correction for samples of older weights with old_policy: "
            f"{algorithm.old_policy}, but rlax.staleness.max_staleness = {most} allows such "
            "samples, and training is known to collapse without one. Use aipo, or set "
            "rlax.objective.old_policy: proximal, with preset decoupled_ppo or corrections: "
            "[{name: truncated_importance_sampling}]; rlax.objective.allow_uncorrected: true "
            "switches this check off",
        )
    updates = section.objective.updates_per_step
    moves = {"policy/old", "policy/behaviour"}  # as pi_theta drifts from the samples' policy
    if algorithm.old_policy == "sampler":  # pi_old/mu is pi_theta/mu then
        moves.add("old/behaviour")
    if updates > 1 and not moves & set(map(_ratio, parts)):
        raise ConfigError(
            "rlax.objective.preset",
            preset,
            f"has no importance ratio, but with epochs * mini_batches = {updates} updates per "
            "batch the policy drifts from the one that generated the samples: set both to 1, or "
            "add a ratio, such as importance_weight: {name: clipped}; "
            "rlax.objective.allow_uncorrected: true switches this check off",
        )


def _corrects(parts: Iterable[Any], ratios: Collection[str | None]) -> bool:
    correcting = (part for part in parts if isinstance(part, StaleCorrection) and part.corrects)
    return any(_ratio(part) in ratios for part in correcting)


def _ratio(part: Any) -> str | None:
    ratio = part.ratio if isinstance(part, RatioFactor) else None
    if ratio is not None and ratio not in get_args(Ratio):
        raise PluginError(f"{part!r} has the ratio {ratio!r}, expected one of {get_args(Ratio)}")
    return ratio


def _name(algorithm: Algorithm, key: str) -> str:
    slot, _, index = key.partition(".")
    choice = getattr(algorithm, slot)
    return choice[int(index)].name if index else choice.name


def _check_ratios(section: RlaxSection, algorithm: Algorithm, built: Mapping[str, Any]) -> None:
    """Checks that pi/mu enters each term once: whole, or as pi/pi_old times pi_old/mu."""
    for term in ("grad_1", "grad_2"):
        other = {"grad_1": "grad_2", "grad_2": "grad_1"}[term]
        used = {k: r for k, part in built.items() if k != other and (r := _ratio(part))}
        found = sorted(used.values())
        whole = found == ["old/behaviour", "policy/old"]
        if len(used) < 2 or (whole and algorithm.old_policy != "sampler"):
            continue
        where = " and in ".join(
            f"rlax.objective.{key} ({_name(algorithm, key)}: {ratio})"
            for key, ratio in used.items()
        )
        raise ConfigError(
            "rlax.objective",
            section.objective.preset,
            f"multiplies {term} by the policy's ratio more than once, in {where}: keep one"
            + (
                ", or set rlax.objective.old_policy to proximal or reprefill, so that they are two "
                "ratios"
                if whole
                else ""
            ),
        )


def _check_guidance(section: RlaxSection, algorithm: Algorithm) -> None:
    """Checks that a demonstration may take the place of a sample."""
    kl = algorithm.kl
    refused = {
        "rlax.logged_samples: no samples are generated": section.trains_on_log,
        "rlax.rollouts.group_size: 1": section.rollouts.group_size < 2,
        "rlax.environment: it may play several turns": section.several_turns,
        "rlax.curation.screening.pilots: groups end whose first samples fail": bool(
            section.curation.screening.pilots
        ),
        "rlax.objective.kl.placement: reward, or kl.adaptive: both need the log-probs with which a "
        "sample was generated": kl.penalises and (kl.placement == "reward" or bool(kl.adaptive)),
    }
    if (guidance := section.objective.guidance) is None:
        return
    for other, there in refused.items():
        if there:
            reason = f"must be null with {other}"
            raise ConfigError("rlax.objective.guidance", dict(guidance), reason)


def _check_kl(algorithm: Algorithm) -> None:
    """Checks that a KL in the reward has no options of the KL in the loss."""
    kl = algorithm.kl
    if kl.placement == "loss" or not kl.penalises:
        return
    for name in ("gradient", "times", "weighted", "aggregation"):
        if (value := getattr(kl, name)) != type(kl).model_fields[name].get_default():
            key, reason = f"rlax.objective.kl.{name}", "has no effect with kl.placement: reward"
            raise ConfigError(key, value.name if isinstance(value, Choice) else value, reason)


def reads_logprobs(slots: ObjectiveSlots) -> bool:
    """True if an objective reads mu, the log-probs that samples were generated with."""
    algorithm, kl = slots.algorithm, slots.algorithm.kl
    at_sampling = kl.penalises and (kl.placement == "reward" or kl.times == "behaviour_ratio")
    if at_sampling or slots.corrections:
        return True
    parts = (slots.importance_weight, slots.grad_1, slots.grad_2)
    if algorithm.old_policy != "sampler":
        return any(_ratio(part) in ("policy/behaviour", "old/behaviour") for part in parts)
    other_terms = algorithm.grad_2.name != "none" or (kl.penalises and kl.times is not None)
    return other_terms or any(_ratio(part) is not None for part in parts)


def corrects_sampler(slots: ObjectiveSlots) -> bool:
    """True if samples may be those of a sampler that computes other log-probs than the trainer.

    Then a part clips or masks a ratio of the trainer to the sampler, whatever the weights' age.
    """
    # pi_old is the trainer's, with reprefill too, unless it is mu itself.
    shown = _SHOWS_AGE["sampler" if slots.algorithm.old_policy == "sampler" else "proximal"]
    return _corrects((slots.importance_weight, slots.grad_1, *slots.corrections), shown)


def _check_options(section: RlaxSection, algorithm: Algorithm) -> None:
    _check_kl(algorithm)
    rollouts, selection = section.rollouts, section.curation.selection
    if selection and algorithm.kl.penalises and algorithm.kl.placement == "reward":
        reason = "must be null with rlax.objective.kl.placement: reward, with which advantages are "
        reason += "computed by the trainer, from all samples"
        raise ConfigError("rlax.curation.selection", selection.name, reason)
    adaptive_kl.check(algorithm.kl, section.batch_rows * section.batches.sequences_per_row)
    names = [choice.plain_name for choice in algorithm.corrections]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("rlax.objective.corrections", names, f"must name {name!r} once")
    if algorithm.old_policy == "reprefill" and section.trains_on_log:
        reason = "needs the weights that generated the samples, which rlax.logged_samples lack"
        raise ConfigError("rlax.objective.old_policy", "reprefill", f"{reason}: choose proximal")
    if algorithm.old_policy == "reprefill" and rollouts.on_new_weights == "continue":
        raise ConfigError(
            "rlax.objective.old_policy",
            "reprefill",
            "cannot be combined with rlax.rollouts.on_new_weights: continue, which generates one "
            "sample with several versions: choose proximal",
        )
    reads_reference = any(choice.plain_name == "reference" for choice in section.signals)
    reads_reference |= algorithm.kl.penalises
    if (path := section.objective.reference.path) and not reads_reference:
        raise ConfigError(
            "rlax.objective.reference.path",
            path,
            "has no effect while rlax.objective.kl.coefficient is 0",
        )
    if algorithm.mask_truncated and rollouts.ignore_stop:
        raise ConfigError(
            "rlax.objective.mask_truncated",
            True,
            "would mask every sample with rlax.rollouts.ignore_stop",
        )
    overlong = algorithm.overlong
    most = overlong.max_tokens or section.sampled_tokens
    if not overlong.penalty and (overlong.buffer_tokens or overlong.max_tokens):
        raise ConfigError(
            "rlax.objective.overlong.penalty", overlong.penalty, "must be above 0 to have an effect"
        )
    if overlong.buffer_tokens and overlong.buffer_tokens > most:
        raise ConfigError(
            "rlax.objective.overlong.buffer_tokens",
            overlong.buffer_tokens,
            f"must not exceed max_tokens = {most}",
        )
