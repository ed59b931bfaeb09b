"""Checks the extensions that plug-ins offer."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.text.harmless import hidden_character
from rlax_plugin.ports.protocols import Extension

_FUNCTIONS = frozenset(("reward", "filter"))  # kinds of which a config may name a function
_OF_REWARDS = {
    "weight": "the factor of the reward in the sum",
    "label": "the name of the reward in metrics",
}

_TWO = ("config", "context")
_ROLES = {"build": _TWO, "check": _TWO, "check_start": _TWO, "compile": (*_TWO, "target")}


def check_offer(kind: str, where: str, name: object, extension: object) -> None:
    """Checks what a plug-in offers under a name.

    Args:
      where: plug-in, hook and name, for messages.

    Raises:
      PluginError: it breaks the contract of hooks.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise PluginError(f"{where}: a name must be text without a colon")
    if hidden := hidden_character(name):
        raise PluginError(f"{where}: the name has {hidden}, which cannot be seen")
    if not isinstance(extension, Extension):
        raise PluginError(f"{where} is {extension!r}, expected an Extension(config_class, build)")
    model = extension.config_class
    if not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise PluginError(
            f"{where}: config_class is {model!r}, expected a subclass of rlax_plugin.api.Section"
        )
    if model.model_config.get("extra") != "forbid":
        raise PluginError(
            f"{where}: {model.__name__} accepts unknown keys: derive it from "
            "rlax_plugin.api.Section"
        )
    if "name" in model.model_fields:
        raise PluginError(
            f"{where}: {model.__name__} has a field 'name', but this key chooses the part: "
            "rename the field"
        )
    for field, meaning in _OF_REWARDS.items() if kind == "reward" else ():
        if field in model.model_fields:
            raise PluginError(
                f"{where}: {model.__name__} has a field {field!r}, but in rlax.rewards this key is "
                f"{meaning}: rename the field"
            )
    if kind in _FUNCTIONS and "function" in model.model_fields:
        raise PluginError(
            f"{where}: {model.__name__} has a field 'function', but this key names a function of "
            "the user's: rename the field"
        )
    for role, taken in _ROLES.items():
        function = getattr(extension, role)
        if function is None and role != "build":
            continue
        if not callable(function) or not _takes(function, len(taken)):
            raise PluginError(f"{where}: {role} must be a function ({', '.join(taken)})")


def _takes(function: Any, count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    return True
