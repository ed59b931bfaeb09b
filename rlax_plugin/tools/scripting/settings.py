"""Keys of a config that are given with dotted names, such as ``rlax.rollouts.group_size``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.scripting.literals import check_json, described


def flat(config: Any, argument: str = "config") -> dict[str, Any]:
    """Returns dotted key -> value, after checking keys and values.

    Raises:
      ConfigError: it is not a mapping of such keys, a value cannot be written, or a key is given
        with another one that contains it.
    """
    if not isinstance(config, Mapping):
        reason = 'must be a dict of keys, such as {"rlax.rollouts.group_size": 8}'
        raise ConfigError(argument, described(config), reason)
    found: dict[str, Any] = {}
    for key, value in config.items():
        if not isinstance(key, str) or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
            reason = "must be the name of a key, such as rlax.rollouts.group_size"
            raise ConfigError(argument, key, reason)
        check_json(f"{argument}[{key!r}]", value)
        found[key] = value
    for key in found:
        parts = key.split(".")
        for end in range(1, len(parts)):
            if (above := ".".join(parts[:end])) in found:
                reason = f"is given together with {above}, which contains it: give one of them"
                raise ConfigError(f"{argument}[{key!r}]", found[key], reason)
    return found


def expanded(settings: Mapping[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    """Returns the same settings, in which no section is given as one mapping.

    Args:
      sections: dotted names, each after those that contain it.
    """
    found = dict(settings)
    for section in sections:
        if isinstance(inside := found.get(section), Mapping):
            del found[section]
            found |= {f"{section}.{key}": value for key, value in inside.items()}
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mapping of mappings that a config has, without dots in its keys.

    Raises:
      ConfigError: a value that is no mapping is given together with a key inside it.
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        place = found
        *above, last = key.split(".")
        for number, part in enumerate(above, 1):
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise ConfigError(".".join(above[:number]), place, "must be a mapping of keys")
        place[last] = value
    return found


def as_arguments(config: Mapping[str, Any]) -> list[str]:
    """Returns ``key=value`` arguments of a command.

    Raises:
      ConfigError: see ``flat``.
    """
    return [f"{key}={json.dumps(value)}" for key, value in flat(config).items()]
