"""Finds the name under which MaxText has exactly a given model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rlax_plugin.config.loading import maxtext_configs, merged, model_keys

# Keys that change nothing of what a model computes, or that every run sets itself.
_APART = {"model_name", "override_model_config", "enable_dropout"}


def name_of(keys: Mapping[str, Any]) -> str | None:
    """Returns the MaxText model name whose file sets exactly a model's keys to the same values.

    Keys missing in a file or in the model have the value of MaxText's ``base.yml``.

    Args:
      keys: MaxText's keys of the model.

    Returns:
      None if there is no such name.
    """
    if (configs := maxtext_configs()) is None:
        return None
    (base, models), wanted = _files(configs), _without_apart(keys)
    for name, named in models.items():
        if all(
            wanted.get(key, base.get(key)) == named.get(key, base.get(key))
            for key in named.keys() | wanted.keys()
        ):
            return name
    return None


@cache
def _files(configs: Path) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
    """Returns the keys of ``base.yml``, and the keys of each model by name; takes a second."""
    names = sorted(path.stem for path in (configs / "models").glob("*.yml"))
    models = {name: _without_apart(model_keys(name)) for name in names}
    return merged(configs / "base.yml"), models


def _without_apart(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if key not in _APART}
