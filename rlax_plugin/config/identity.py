"""Identity of configs: the keys that affect the computation, their hash, and differences."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlax_plugin.base.text.secrets import names_secret, stripped
from rlax_plugin.config.data_paths import without_directories
from rlax_plugin.config.loading import overridden

# What may differ between a run and its continuation, or between its processes: how long, how
# patiently, where, and who watches. Everything else decides what is computed.
_NOT_HASHED = ("steps", "run_name", "base_output_directory", "base_config", "hf_access_token")
_NOT_HASHED_RLAX = frozenset(
    ["deadlines", "launcher", "network", "observers", "retention", "state_dir", "trackers"]
)
# Of ``rlax:``, what decides a sample, or whether a worker can read its weights at all.
_SAMPLED = (
    "rlax.deterministic",
    "rlax.rollouts.",
    "rlax.staleness.",
    "rlax.weights.dtype",
    "rlax.weights.store",
)
_NOT_SAMPLED = frozenset(("rlax.rollouts.groups_per_step", "rlax.rollouts.progress_s"))
# What a worker may say for itself. MaxText's keys among them: devices, and directories.
LOCAL = (
    "rlax.deadlines",
    "rlax.network",
    "rlax.plugins",
    "rlax.rollouts.engine",
    "rlax.rollouts.slots",
    "rlax.weights.stream_dir",
    "rlax.weights.transfer",
    "base_output_directory",
    "hardware",
    "jax_cache_dir",
    "skip_jax_distributed_system",
)
QUANTIZATION = "rlax.rollouts.engine.quantization"
"""The option of an engine that is not a worker's own: it decides which policy generates."""
_LOCAL = frozenset(LOCAL)
_LOCAL_BELOW = (*(f"{key}." for key in LOCAL), "dcn_", "ici_")
_NOT_HASHED_BELOW = {
    "curation": ("guard", "max_refill"),
    "objective": ("max_gap",),
    "rollouts": ("order",),
    "weights": ("memory_mib", "stream_dir", "streams", "transfer"),
}


def config_hash(content: Mapping[str, Any]) -> str:
    """Returns 12 hex digits that identify the content of a config, regardless of its order.

    Keys that may change when a run is resumed are left out: ``steps``, ``run_name``,
    ``base_output_directory``, ``hf_access_token``, and under ``rlax:`` deadlines, launcher,
    network, state_dir, trackers, observers, retention, environments.NAME.deadlines, curation.guard,
    curation.max_refill, objective.max_gap, rollouts.order, weights.memory_mib, weights.stream_dir,
    weights.streams and weights.transfer. Of a path of data only the last component counts.

    Args:
      content: see ``ResolvedConfig``.
    """
    return _digest(hashed(content))


def host_hash(content: Mapping[str, Any]) -> str:
    """Returns words that identify the content of a config for all hosts of one trainer.

    To ``config_hash`` they add ``steps``: a run may be continued with another number, but all hosts
    need the same one, because the learning rate depends on it.
    """
    return f"{config_hash(content)} (steps={content.get('steps')})"


def sample_hash(content: Mapping[str, Any]) -> str:
    """Returns 12 hex digits that identify the keys that affect samples, equal for all workers.

    A worker's local keys (see ``config/handing.py``), such as engine, slots and mesh, are left out,
    but not the engine's ``quantization``.
    All of MaxText's other keys are included, since only MaxText knows which of them define the
    model. Secrets are left out too, because workers do not receive them.
    """
    found = dict(leaves(stripped(hashed(content), mark=None)))
    return _digest({key: value for key, value in found.items() if _samples(key)})


def _samples(key: str) -> bool:
    if is_local(key) or key in _NOT_SAMPLED:
        return False
    return not key.startswith("rlax.") or key.startswith(_SAMPLED)


def is_local(key: str) -> bool:
    """True if a worker may set a key for itself: it affects place and speed, but no sample."""
    own = key in _LOCAL or key.startswith(_LOCAL_BELOW) or names_secret(key)
    return own and key != QUANTIZATION


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def hashed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a config on which a run and its resumption must agree."""
    # Data that changed are found by their digests (``data/prompts/record.py``), wherever they lie.
    content = without_directories({k: v for k, v in content.items() if k not in _NOT_HASHED})
    if isinstance(content.get("rlax"), Mapping):
        section = {k: v for k, v in content["rlax"].items() if k not in _NOT_HASHED_RLAX}
        # How long to try, which a run that gave up says to raise, and how bytes travel.
        for part, names in _NOT_HASHED_BELOW.items():
            if isinstance(given := section.get(part), Mapping) and not given.keys().isdisjoint(
                names
            ):
                section[part] = {k: v for k, v in given.items() if k not in names}
                if not section[part]:  # as if nothing had been given
                    del section[part]
        if isinstance(several := section.get("environments"), Mapping):
            section["environments"] = {
                name: {k: v for k, v in one.items() if k != "deadlines"}
                if isinstance(one, Mapping)
                else one
                for name, one in several.items()
            }
        content["rlax"] = section
    return content


def changes_results(override: str) -> bool:
    """True if a ``key=value`` argument may change the results, not only place or speed.

    Raises:
      ConfigError: the argument is not of the form ``key=value``.
    """
    return any(value != {} for _, value in leaves(hashed(overridden({}, [override]))))


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """Returns dotted key and both values of each difference that changes the hash of a config.

    A missing key has the value None.
    """
    ours, theirs = dict(leaves(hashed(one))), dict(leaves(hashed(other)))
    return [
        (key, ours.get(key), theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]


def leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of everything that a merged config sets; a list is one value."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
