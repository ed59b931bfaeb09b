"""Checks the extensions that plug-ins offer."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel

from rlax_plugin.errors import PluginError
from rlax_plugin.ports.protocols import Extension

_FUNCTIONS = frozenset(("reward", "filter"))  # kinds of which a config may name a function


def check_offer(kind: str, where: str, name: object, extension: object) -> None:
    """Checks what a plug-in offers under a name.

    Args:
      where: plug-in, hook and name, for messages.

    Raises:
      PluginError: it breaks the contract of hooks.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise PluginError(f"{where}: a name must be text without a colon")
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
    if kind == "reward" and "weight" in model.model_fields:
        raise PluginError(
            f"{where}: {model.__name__} has a field 'weight', but in rlax.rewards this key is the "
            "factor of the reward in the sum: rename the field"
        )
    if kind in _FUNCTIONS and "function" in model.model_fields:
        raise PluginError(
            f"{where}: {model.__name__} has a field 'function', but this key names a function of "
            "the user's: rename the field"
        )
    for role in ("build", "check", "check_start"):
        function = getattr(extension, role)
        if function is None and role != "build":
            continue
        if not callable(function) or not _takes_two(function):
            raise PluginError(f"{where}: {role} must be a function (config, context)")


def _takes_two(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True
