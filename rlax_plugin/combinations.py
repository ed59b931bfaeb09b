"""Which combinations of an objective's parts and numbers make sense; the others are refused.

Parts say what they are: ``ratio``, what they multiply the term by, and ``corrects``, whether they
keep samples of old weights from dominating; see ``objective.TokenFunction``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.errors import ConfigError

# By old policy: the ratios in which the age of a sample shows, None for a mask. With reprefill
# pi_old is the policy that drew the sample, and pi_old/mu the trainer's view against the sampler's.
_SHOWS_AGE: Mapping[str, tuple[str | None, ...]] = {
    "sampler": ("policy/old", "policy/behaviour", "old/behaviour", None),
    "proximal": ("policy/behaviour", "old/behaviour", None),
    "reprefill": ("policy/old", "policy/behaviour"),
}


def check(section: RlaxSection, algorithm: Algorithm, built: Mapping[str, Any]) -> None:
    """Refuses what cannot be meant.

    Args:
      algorithm: preset and config, merged.
      built: config key below ``rlax.objective`` -> part, of every slot.

    Raises:
      ConfigError: a ratio enters twice; samples of old weights are not corrected, or several
        updates by a term that knows no ratio; options that contradict each other or have no effect.
    """
    _check_ratios(section, algorithm, built)
    _check_options(section, algorithm)
    if section.objective.allow_uncorrected:
        return
    preset, most = section.objective.preset, section.staleness.max_staleness
    if most > 1 and not any(_corrects_age(part, algorithm.old_policy) for part in built.values()):
        raise ConfigError(
            "rlax.objective.preset",
            preset,
            f"corrects nothing for samples of older weights with old_policy: "
            f"{algorithm.old_policy}, and rlax.staleness.max_staleness = {most} allows them; "
            "uncorrected clipping is known to collapse there. Use decoupled_ppo or aipo, or set "
            "rlax.objective.old_policy: proximal with corrections: "
            "[{name: truncated_importance_sampling}]; rlax.objective.allow_uncorrected: true "
            "trains all the same",
        )
    updates = section.objective.updates_per_step
    if updates > 1 and not {"policy/old", "policy/behaviour"} & set(map(_ratio, built.values())):
        raise ConfigError(
            "rlax.objective.preset",
            preset,
            f"has no ratio to the policy that drew the samples, and epochs * mini_batches = "
            f"{updates} updates with one batch leave that policy: set both to 1, or add a ratio, "
            "such as importance_weight: {name: clipped}; "
            "rlax.objective.allow_uncorrected: true trains all the same",
        )


def _ratio(part: Any) -> str | None:
    return getattr(part, "ratio", None)


def _corrects_age(part: Any, old_policy: str) -> bool:
    return getattr(part, "corrects", False) and _ratio(part) in _SHOWS_AGE[old_policy]


def _name(algorithm: Algorithm, key: str) -> str:
    slot, _, index = key.partition(".")
    choice = getattr(algorithm, slot)
    return choice[int(index)].name if index else choice.name


def _check_ratios(section: RlaxSection, algorithm: Algorithm, built: Mapping[str, Any]) -> None:
    """pi/mu may enter each term once: whole, or as pi/pi_old times pi_old/mu."""
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


def _check_options(section: RlaxSection, algorithm: Algorithm) -> None:
    objective, rollouts = section.objective, section.rollouts
    names = [choice.name for choice in algorithm.corrections]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError("rlax.objective.corrections", names, f"must name {name!r} once")
    if algorithm.old_policy == "reprefill":
        if rollouts.on_new_weights == "continue":
            raise ConfigError(
                "rlax.objective.old_policy",
                "reprefill",
                "must not be used with rlax.rollouts.on_new_weights: continue, which draws one "
                "sample with several versions: choose proximal",
            )
    elif objective.offload_old_policy:
        raise ConfigError(
            "rlax.objective.offload_old_policy",
            True,
            f"has no effect with old_policy: {algorithm.old_policy}, which keeps no copy",
        )
    if not algorithm.kl.coefficient:
        for name, value in objective.reference:
            if value:
                raise ConfigError(
                    f"rlax.objective.reference.{name}",
                    value,
                    "has no effect while rlax.objective.kl.coefficient is 0",
                )
    if algorithm.mask_truncated and rollouts.ignore_stop:
        raise ConfigError(
            "rlax.objective.mask_truncated",
            True,
            "would mask every sample with rlax.rollouts.ignore_stop",
        )
    overlong = algorithm.overlong
    most = overlong.max_tokens or rollouts.max_new_tokens
    if overlong.penalty and overlong.buffer_tokens and overlong.buffer_tokens > most:
        raise ConfigError(
            "rlax.objective.overlong.buffer_tokens",
            overlong.buffer_tokens,
            f"must not exceed max_tokens = {most}",
        )
