"""What a training with adapters reads besides MaxText: the base, and adapters to start from.

MaxText's checkpoints of such a training hold adapters and their optimizer state, so a training that
continues needs its base again: MaxText would make one from the seed. ``base.json`` in the run's
directory has the fingerprint of every variable of the base, and no other base is trained on. It is
written when a training starts that does not continue.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from maxtext_overrides.adapters import is_adapter, of_adapters
from maxtext_overrides.models import peft
from maxtext_overrides.models.merged import BASE_KEY, RecordedBase, base_of, record
from maxtext_overrides.models.reading import stored_shapes
from maxtext_overrides.trainer import first_weights
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import published, restore
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.weights.device_fingerprint import fingerprint

OVERRIDES = BY_MODULE["maxtext_overrides/trainer/kept_weights.py"]


def complete(config: Any, model: Any, continues: bool, base: str | None) -> None:
    """Reads what MaxText has not read, and compares the base with that of the run.

    Args:
      model: the model after MaxText's set-up; it is changed.
      continues: True if its adapters are those of a checkpoint of the run.
      base: path of the base; None: ``load_parameters_path``.

    Raises:
      ConfigError: a checkpoint cannot be read, lacks a variable, or is of another model; or the
        base or alpha is not the one that the adapters were trained with.
    """
    path = config.load_parameters_path if base is None else base
    if continues and path:
        _read(config, model, BASE_KEY, path, lambda name: not is_adapter(name))
    if not continues and config.lora.lora_restore_path:
        _read(config, model, peft.KEY, config.lora.lora_restore_path, is_adapter)
    _check_base(config, published(nnx.state(model)), path, continues)


def without_base(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns MaxText's ``_filter_lora_trainable_state``, which drops nothing but the base."""

    def filtered(state: Any) -> Any:
        if not isinstance(state, dict):
            return stock(state)
        if "params" in state:
            return {**state, "params": _adapters(state["params"], "")}
        return _adapters(state, "")

    return filtered


def _adapters(tree: Any, name: str) -> Any:
    """Returns a tree of nested dicts with its adapters only; None if it has none."""
    if not isinstance(tree, dict):
        return tree if is_adapter(name) else None
    found = {key: _adapters(below, f".{key}") for key, below in tree.items()}
    return {key: below for key, below in found.items() if below is not None} or None


def _read(config: Any, model: Any, key: str, path: str, wanted: Callable[[str], bool]) -> None:
    """Replaces variables of a model by those of a checkpoint."""
    state = nnx.state(model)
    current = published(state)
    shapes = {name: tuple(a.shape) for name, a in current.items() if wanted(name)}
    if first_weights.is_peft(key, path):
        arrays = peft.read(config, path, shapes)
        found = {name: _placed(array, current[name].sharding) for name, array in arrays.items()}
        nnx.update(model, restore(state, current | found))
        return
    _check_shapes(key, path, shapes)
    chosen = [
        (place, variable)
        for place, variable in nnx.to_flat_state(state)
        if (name := ".".join(map(str, place))) in current and wanted(name)
    ]
    like = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding),
        nnx.from_flat_state(chosen),
    )
    nnx.update(model, restore(state, current | read_variables(config, key, path, like)))


def _placed(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Puts an array that every host has read on the devices."""
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def check_first_adapters(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks the adapters that training starts from, without reading an array.

    Args:
      config: MaxText's, validated.
      shapes: variable of the model -> shape.

    Raises:
      ConfigError: they are no checkpoint of a run or directory of PEFT, are others than those of
        the model, or have another alpha.
    """
    if (found := first_weights.chosen_adapters(config.get_keys())) is None:
        return
    expected = of_adapters(shapes)
    if first_weights.is_peft(*found):
        peft.check(config, found[1], expected)
        return
    _check_shapes(*found, expected)
    base_of(found[1], *found).check_alpha(config)


def _check_shapes(key: str, path: str, expected: Mapping[str, tuple[int, ...]]) -> None:
    stored = stored_shapes(key, path)
    for name, shape in expected.items():
        if (found := stored.get(name)) != shape:
            what = "is missing" if found is None else f"has shape {list(found)}"
            raise ConfigError(key, path, f"{name} {what}, and must have shape {list(shape)}")
    if others := sorted(filter(is_adapter, stored.keys() - expected.keys())):
        raise ConfigError(key, path, f"has the adapter {others[0]}, which this config has not")


def read_variables(config: Any, key: str, path: str, like: nnx.State) -> dict[str, jax.Array]:
    """Returns variables of a checkpoint by name.

    Args:
      key: config key to name in an error.
      path: a MaxText parameter checkpoint, or a training checkpoint's ``items``.
      like: their shapes, dtypes and shardings.

    Raises:
      ConfigError: there is no checkpoint, or it cannot be read.
      OverrideError: MaxText's source differs from the tested one.
    """
    from maxtext.common import checkpointing

    check(OVERRIDES, config.allow_untested)
    try:
        found = checkpointing.load_params_from_path(
            path,
            like,
            config.checkpoint_storage_concurrent_gb,
            config.checkpoint_storage_use_ocdbt,
            config.checkpoint_storage_use_zarr3,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(key, path, str(error)) from error
    return published(found)


def _check_base(
    config: Any, variables: Mapping[str, jax.Array], path: str, continues: bool
) -> None:
    base = {name: array for name, array in variables.items() if not is_adapter(name)}
    found = {name: int(value) for name, value in jax.device_get(fingerprint(base)).items()}
    if continues:
        # Of rlax eval the checkpoint is another run's.
        taken = config.load_full_state_path or f"{config.checkpoint_dir.rstrip('/')}/newest"
        known = base_of(taken, BASE_KEY, path)
    elif (taken := config.lora.lora_restore_path) and not first_weights.is_peft(peft.KEY, taken):
        known = base_of(taken, peft.KEY, taken)
    else:
        known = None
    if known is not None:
        known.check_alpha(config)
        wrong = [
            name
            for name in known.fingerprints.keys() | found.keys()
            if known.fingerprints.get(name) != found.get(name)
        ]
        if wrong:
            raise known.mismatch(path, min(wrong), found.get(min(wrong)))
    if not continues and config.enable_checkpointing and jax.process_index() == 0:
        dtypes = {name: array.dtype.name for name, array in base.items()}
        own = os.path.dirname(config.checkpoint_dir.rstrip("/"))
        record(RecordedBase(own, path, float(config.lora.lora_alpha), found, dtypes))
