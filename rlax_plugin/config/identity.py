"""When two configs are the same one: what decides what is computed, its hash, and differences."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlax_plugin.config.loading import _BASE, merged, overridden

# What may differ between a run and its continuation, or between its processes: how long, how
# patiently, where, and who watches. Everything else decides what is computed.
_NOT_HASHED = ("steps", "run_name", "base_output_directory", _BASE)
_NOT_HASHED_RLAX = ("deadlines", "launcher", "network", "state_dir", "trackers", "observers")
_LIMITS = {"curation": ("max_refill",), "objective": ("max_gap", "max_gap_steps")}


def config_hash(config_path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> str:
    """12 hex digits of what the files and arguments say, wherever and in whatever order they do.

    Left out is what may change when a run continues: ``steps``, ``run_name``,
    ``base_output_directory``, and under ``rlax:`` deadlines, launcher, network, state_dir,
    trackers, observers, curation.max_refill, objective.max_gap and objective.max_gap_steps.

    Raises:
      ConfigError: the files cannot be read.
    """
    text = json.dumps(_hashed(merged(config_path, overrides)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _hashed(content: Mapping[str, Any]) -> dict[str, Any]:
    """What of a config a run and its continuation must agree on."""
    content = {k: v for k, v in content.items() if k not in _NOT_HASHED}
    if isinstance(content.get("rlax"), Mapping):
        section = {k: v for k, v in content["rlax"].items() if k not in _NOT_HASHED_RLAX}
        # How long to try: what a run that gave up says to raise.
        for part, limits in _LIMITS.items():
            if isinstance(section.get(part), Mapping):
                section[part] = {k: v for k, v in section[part].items() if k not in limits}
        content["rlax"] = section
    return content


def decides(override: str) -> bool:
    """Whether a ``key=value`` argument may change what is computed, and not only where or how fast.

    Raises:
      ConfigError: it is no ``key=value``.
    """
    return any(value != {} for _, value in leaves(_hashed(overridden({}, [override]))))


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """Dotted key and both values of what makes two merged configs hash differently.

    A key that is not there has the value None.
    """
    ours, theirs = dict(leaves(_hashed(one))), dict(leaves(_hashed(other)))
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything that a merged config sets; a list is one value."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
