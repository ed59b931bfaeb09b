"""Sends a run's config to a worker, and merges it with the worker's local keys.

The controller sends its resolved config. A worker adds the keys that are local to it: engine,
slots, mesh, deadlines. Keys that affect samples always have the run's values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.secrets import shown_value, stripped
from rlax_plugin.config.identity import QUANTIZATION, is_local, leaves
from rlax_plugin.config.loading import ResolvedConfig, overridden, resolved
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.config.yaml_values import check_values

MAX_BYTES = 1 << 20
"""Maximum size of a config in a message; those that people write have a few thousand bytes."""

FROM_RUN = "the controller's config"

# No worker needs them.
_KEPT_BACK_RLAX = ("trackers", "observers")
# The rest is of the trainer's machine: its addresses, ports and files.
_NETWORK_OF_ALL = ("serve_clients", "allow_other_versions")


def to_bytes(config: ResolvedConfig) -> bytes:
    """Returns the bytes that the controller sends to workers: the config without secrets.

    Raises:
      ConfigError: the config is too large.
    """
    content = stripped(config.content, mark=None)
    section = content.get("rlax") or {}
    content["rlax"] = handed = {k: v for k, v in section.items() if k not in _KEPT_BACK_RLAX}
    if isinstance(network := handed.pop("network", None), Mapping):
        handed["network"] = {k: v for k, v in network.items() if k in _NETWORK_OF_ALL}
    arguments = sorted(config.arguments & content.keys())
    text = json.dumps({"content": content, "arguments": arguments}).encode()
    if len(text) > MAX_BYTES:
        reason = f"takes {len(text):,} bytes, and workers accept at most {MAX_BYTES:,}"
        raise ConfigError("config", config.source, reason)
    return text


def of_bytes(text: bytes) -> ResolvedConfig:
    """Reads a config from a controller, with the same checks as for a user's file.

    Raises:
      ConfigError: the text is not a config, or contains values that no config may contain.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(FROM_RUN, None, f"takes more than {MAX_BYTES:,} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(FROM_RUN, None, "cannot be read: it is not valid JSON") from None
    check_values(document, FROM_RUN)
    content = document.get("content") if isinstance(document, dict) else None
    arguments = document.get("arguments") if isinstance(document, dict) else None
    if not isinstance(content, dict) or not isinstance(arguments, list):
        raise ConfigError(FROM_RUN, None, "cannot be read: it contains no config")
    names = frozenset(str(name) for name in arguments)
    return resolved(content, arguments=names & content.keys(), source=FROM_RUN)


def for_worker(run: ResolvedConfig, overrides: Sequence[str] = ()) -> ResolvedConfig:
    """Returns the config of a worker: the run's config with the worker's local keys.

    Args:
      overrides: ``key=value`` arguments of the worker.

    Raises:
      ConfigError: the worker has another value than the run for a key that is not local.
    """
    arguments = overridden({}, overrides)
    ours = run.with_content(arguments)
    local: dict[str, Any] = {}
    # An engine of another name loses the options of the run's, this one too.
    for key, value in (*leaves(arguments), (QUANTIZATION, None)):
        if is_local(key):
            _put(local, key, value)
        elif (own := _value(ours, key)) != (theirs := _value(run, key)):
            there = "not set" if theirs is None else yaml_text(shown_value(key, theirs))
            reason = (
                f"is {there} in the run that this worker joins: leave it out. A worker may set "
                "only what is local to it, such as rlax.rollouts.slots and rlax.rollouts.engine"
            )
            raise ConfigError(key, own, reason)
    return run.with_content(local)


def _value(config: ResolvedConfig, key: str) -> Any:
    """Returns the value of a dotted key, set or by default; None if there is none."""
    first, *rest = key.split(".")
    value: Any = config.maxtext.get(first)
    if first == "rlax":
        value = config.section.model_dump(mode="json")
    for name in rest:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key."""
    inner, names = content, key.split(".")
    for name in names[:-1]:
        inner = inner.setdefault(name, {})
    inner[names[-1]] = value
