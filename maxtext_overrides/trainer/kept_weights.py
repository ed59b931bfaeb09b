"""Keeps copies of a model's weights during training, and saves and loads them as MaxText files.

With adapters only these are copied: the base does not change, and a copy is used with the loop's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jax.sharding import Sharding

from maxtext_overrides import adapters
from maxtext_overrides.trainer.adapter_files import read_variables
from maxtext_overrides.trainer.train_loop import Loop, fresh_weights
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from maxtext_overrides.variables import UNPUBLISHED, published

OVERRIDES = BY_MODULE["maxtext_overrides/trainer/kept_weights.py"]

Weights = Mapping[str, jax.Array]  # as ``variables.published`` names them


class KeptWeights:
    """Weights that no train step changes, sharded as the trainer's.

    Args:
      weights: arrays on the devices or in their host memory, owned by this object.
      shardings: name -> sharding on the devices while they are used.
    """

    def __init__(self, weights: Weights, shardings: Mapping[str, Sharding]):
        self._weights, self._shardings = dict(weights), dict(shardings)

    @classmethod
    def of(cls, loop: Loop, offload: bool) -> KeptWeights:
        """Returns a copy of the current weights without waiting for it.

        Args:
          loop: the running loop.
          offload: True keeps it in host memory between uses.
        """
        current = published(_parameters(loop))
        shardings = {name: array.sharding for name, array in current.items()}
        if not offload:
            return cls(fresh_weights(loop, only=current.__contains__), shardings)
        host = {name: _resting(sharding, offload) for name, sharding in shardings.items()}
        # Parameters that rest on the host themselves must not be shared: train steps donate them.
        return cls(jax.device_put(current, host, may_alias=False), shardings)

    def on_devices(self, loop: Loop) -> Weights:
        """Returns the weights on the devices, for temporary use; offloaded weights are copied."""
        kept = jax.device_put(self._weights, self._shardings)
        return published(loop.model_state) | kept if adapters.enabled(loop.config) else kept


def _resting(sharding: Sharding, offload: bool) -> Sharding:
    return sharding.with_memory_kind("pinned_host") if offload else sharding


def _parameters(loop: Loop) -> nnx.State:
    if adapters.enabled(loop.config):
        return nnx.filter_state(loop.model_state, nnx.LoRAParam)
    return nnx.filter_state(loop.model_state, nnx.Not(nnx.Any(*UNPUBLISHED)))


def save(path: str, loop: Loop) -> None:
    """Writes the current weights in the form that ``load`` and ``load_parameters_path`` read.

    An existing checkpoint at ``path`` is replaced. The directory appears only when all is written,
    and the call returns then.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    from maxtext.common import checkpointing

    check(OVERRIDES, loop.config.allow_untested)
    collections: dict[str, dict[Any, Any]] = {}
    for place, variable in nnx.to_flat_state(_parameters(loop)):
        # MaxText reads a variable from the collection of its class; a parameter's is "params".
        collection = nnx.variable_name_from_type(type(variable), allow_register=True)
        collections.setdefault(collection, {})[place] = variable.get_value()
    checkpointing.save_params_to_path(
        path,
        {name: nnx.traversals.unflatten_mapping(flat) for name, flat in collections.items()},
        loop.config.checkpoint_storage_use_ocdbt,
        loop.config.checkpoint_storage_use_zarr3,
    )


def load(path: str, loop: Loop, offload: bool, key: str) -> KeptWeights:
    """Reads weights with the names, shapes, dtypes and shardings of the trainer's.

    Args:
      path: a MaxText parameter checkpoint, or a training checkpoint's ``items``.
      loop: the running loop.
      offload: see ``KeptWeights.of``; if True they are read into host memory.
      key: config key to name in an error.

    Raises:
      ConfigError: there is no checkpoint, it cannot be read, or it is another model's.
      OverrideError: MaxText's source differs from the tested one.
    """
    like = jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(
            array.shape, array.dtype, sharding=_resting(array.sharding, offload)
        ),
        _parameters(loop),
    )
    found = read_variables(loop.config, key, path, like)
    current = published(_parameters(loop))
    return KeptWeights(found, {n: a.sharding for n, a in current.items()})
