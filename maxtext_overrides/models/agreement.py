"""What variables the installed MaxText has for a model's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from maxtext_overrides.config.loading import Config, load_to_check, passed_on
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.models.tensors import Writable
from maxtext_overrides.variables import published
from rlax_plugin.config.loading import resolved
from rlax_plugin.errors import TrainingError

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
    """MaxText's config, and name -> shape of every variable of its model.

    Args:
      keys: of the model.
      source: for messages.

    Raises:
      ConfigError: MaxText rejects the keys.
    """
    given = resolved({**_PLAIN, **keys}, source=source)
    config = load_to_check(given)
    with passed_on(given):
        model = published(nnx.state(abstract_model(config, "train")))
    return config, {name: tuple(value.shape) for name, value in model.items()}


def check(keys: Mapping[str, Any], found: Sequence[Writable], source: str) -> None:
    """Compares names and shapes of all variables with those of MaxText's own model.

    Args:
      keys: MaxText's keys of the model.
      found: what is going to be written.
      source: for messages.

    Raises:
      ConfigError: MaxText rejects the keys.
      TrainingError: it has other variables, as only another version of it can.
    """
    _, expected = loaded_model(keys, source)
    shapes = {variable.name: variable.shape for variable in found}
    if expected != shapes:
        name = min(k for k in expected.keys() | shapes.keys() if expected.get(k) != shapes.get(k))
        raise TrainingError(
            f"the installed MaxText has the variable {name} with the shape {expected.get(name)}, "
            f"and this model needs {shapes.get(name)}"
        )
