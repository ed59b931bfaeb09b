"""Reads the rotary positions of a config.json, which files describe in three ways.

``rope_parameters`` is the form of transformers 5, ``rope_theta`` with ``rope_scaling`` the older
one; Gemma 3 has ``rope_parameters`` of two kinds, or ``rope_local_base_freq`` in addition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxtext_overrides.models.architecture import LLAMA3, Architecture, Rope
from maxtext_overrides.models.families import Family
from rlax_plugin.base.errors import ConfigError

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# What may stand beside the kind and theta.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": ("factor",),  # without effect
    "linear": ("factor",),
    "llama3": ("factor", *LLAMA3),
}
_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions in MaxText's terms.

    Attributes:
      kind: scaling of the positions.
      theta: base of the frequencies.
      factor: factor of the scaling.
      local_theta: base in layers with a window; 0: these layers have no base of their own.
    """

    kind: Rope = "default"
    theta: int = 1
    factor: float = 1.0
    local_theta: int = 0


def rotary_positions(
    content: Mapping[str, Any], values: Mapping[str, Any], family: Family, path: Path
) -> tuple[Rotary, list[ConfigError]]:
    """Returns the rotary positions, and an error for each part that MaxText computes differently.

    Args:
      content: content of config.json.
      values: the same as transformers understands it.
      family: the model's family.
      path: path of config.json, for messages.
    """
    problems = _contradictions(content, path)
    found = values.get("rope_parameters") or {}
    if family.block != "gemma3":
        return _described(found, family, f"rope_parameters in {path}", problems), problems
    where = f"rope_parameters.{_GLOBAL} in {path}"
    whole = _described(found.get(_GLOBAL) or {}, family, where, problems)
    local = found.get(_LOCAL) or {}
    where = f"rope_parameters.{_LOCAL} in {path}"
    short = _described(local, family, where, problems)
    if short.kind != "default":
        problems.append(ConfigError(where, local, "is not supported; rope_type must be default"))
    return Rotary(whole.kind, whole.theta, whole.factor, short.theta), problems


def _described(
    rope: Mapping[str, Any], family: Family, where: str, problems: list[ConfigError]
) -> Rotary:
    """Returns the rotary positions that one description means; appends errors to ``problems``."""

    def wrong(reason: str) -> Rotary:
        problems.append(ConfigError(where, dict(rope), reason))
        return Rotary()

    theta, factor = rope.get("rope_theta"), rope.get("factor")
    if not _is_number(theta) or theta != int(theta):
        return wrong("rope_theta must be a whole number, as MaxText wants it")
    kind = rope.get("rope_type", "default")
    if kind not in family.ropes:
        return wrong(f"rope_type must be {', '.join(family.ropes[:-1])} or {family.ropes[-1]}")
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        return wrong("partial rotary positions are not supported")
    if unknown := sorted(rope.keys() - {*_COMMON, *_KEYS[kind]}):
        return wrong(f"{unknown[0]} is not known with rope_type {kind}")
    if kind == "default":
        return Rotary(kind, int(theta))
    if not _is_number(factor) or not factor > 0:
        return wrong("factor must be a number above 0")
    if kind == "llama3" and any(rope.get(key) != right for key, right in LLAMA3.items()):
        said = ", ".join(f"{key} {right:g}" for key, right in LLAMA3.items())
        return wrong(f"MaxText has llama3 scaling only with {said}")
    if factor == 1:
        return Rotary("default", int(theta))  # which it is, and MaxText cannot tell them apart
    return Rotary(kind, int(theta), float(factor))


def _contradictions(content: Mapping[str, Any], path: Path) -> list[ConfigError]:
    """Returns an error for each pair of keys that contradict each other.

    Older and newer readers would use different ones of such keys.
    """
    new = content.get("rope_parameters")
    if not isinstance(new, Mapping):
        return []
    nested = new.get(_GLOBAL)
    whole = nested if isinstance(nested, Mapping) else new
    local = new.get(_LOCAL)
    said = {
        "rope_theta": whole.get("rope_theta"),
        "rope_local_base_freq": local.get("rope_theta") if isinstance(local, Mapping) else None,
        "partial_rotary_factor": whole.get("partial_rotary_factor"),
    }
    problems = [
        ConfigError(f"{key} in {path}", content[key], f"contradicts rope_parameters: {value!r}")
        for key, value in said.items()
        if value is not None and content.get(key) not in (None, value)
    ]
    old = content.get("rope_scaling")
    if isinstance(old, Mapping):
        kinds = [{"default": None}.get(k := _kind(one), k) for one in (old, whole)]
        factors = [one.get("factor") for one in (old, whole)]
        if kinds[0] != kinds[1] or (kinds[0] is not None and factors[0] != factors[1]):
            reason = f"contradicts rope_parameters: {dict(whole)!r}"
            problems.append(ConfigError(f"rope_scaling in {path}", dict(old), reason))
    return problems


def _kind(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def rope_content(found: Architecture) -> dict[str, Any]:
    """Returns the keys of a config.json that describe an architecture's rotary positions."""
    rope: dict[str, Any] = {"rope_type": found.rope, "rope_theta": float(found.rope_theta)}
    if found.rope != "default":
        rope["factor"] = found.rope_factor
    if found.rope == "llama3":
        rope |= LLAMA3
    # Readers older than ``rope_parameters`` know the others.
    content: dict[str, Any] = {"rope_parameters": rope, "rope_theta": float(found.rope_theta)}
    if found.block == "gemma3":
        local = float(found.local_rope_theta or found.rope_theta)
        short = {"rope_type": "default", "rope_theta": local}
        content["rope_parameters"] = {_GLOBAL: rope, _LOCAL: short}
        content["rope_local_base_freq"] = local
    if found.rope != "default":
        content["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
    return content
