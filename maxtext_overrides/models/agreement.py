"""Checks that the installed MaxText computes the same model as the source, with its variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import nnx

from maxtext_overrides.config.loading import Config, load_to_check, passed_on
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.models.architecture import Architecture
from maxtext_overrides.models.maxtext_keys import maxtext_keys, of_maxtext
from maxtext_overrides.models.rules import variables
from maxtext_overrides.variables import published
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.config.loading import resolved

_PLAIN = {
    "base_config": "base.yml",
    "run_name": "convert",
    "hardware": "cpu",
    "attention": "dot_product",
    "enable_checkpointing": False,
    # MaxText's config comes with such a section; nothing of it is used.
    "rlax": {"prompt_source": {"name": "none"}, "rewards": [{"name": "none"}]},
}


def loaded_model(keys: Mapping[str, Any], source: str) -> tuple[Config, dict[str, tuple[int, ...]]]:
    """Returns MaxText's config, and the shape of every variable of its model by name.

    Args:
      keys: MaxText keys of the model.
      source: name of the model in messages.

    Raises:
      ConfigError: MaxText rejects the keys.
    """
    given = resolved({**_PLAIN, **keys}, source=source)
    config = load_to_check(given)
    with passed_on(given):
        model = published(nnx.state(abstract_model(config, "train")))
    return config, {name: tuple(value.shape) for name, value in model.items()}


def check(model: Architecture, keys: Mapping[str, Any], source: str) -> None:
    """Compares MaxText's config and all variables with those that a model needs.

    Args:
      model: architecture that is about to be written.
      keys: MaxText's keys of it, ``scan_layers`` included.
      source: name of the model in messages.

    Raises:
      ConfigError: MaxText rejects the keys.
      TrainingError: MaxText makes another model of the keys, as an untested version of it may.
    """
    config, expected = loaded_model(keys, source)
    for key, (wanted, found) in differences(model, config).items():
        raise TrainingError(
            f"the installed MaxText computes with {key} = {found!r}, and this model needs "
            f"{wanted!r}"
        )
    shapes = {variable.name: variable.shape for variable in variables(model, config.scan_layers)}
    if expected != shapes:
        name = min(k for k in expected.keys() | shapes.keys() if expected.get(k) != shapes.get(k))
        raise TrainingError(
            f"the installed MaxText has the variable {name} with the shape {expected.get(name)}, "
            f"and this model needs {shapes.get(name)}"
        )


def differences(model: Architecture, config: Config) -> dict[str, tuple[Any, Any]]:
    """Compares a config with a model: each key that differs -> (the model's value, the config's).

    Raises:
      ConfigError: the config describes no model of the supported families.
    """
    wanted, found = maxtext_keys(model), maxtext_keys(of_maxtext(config))
    return {
        key: (wanted.get(key), found.get(key))
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
    }
