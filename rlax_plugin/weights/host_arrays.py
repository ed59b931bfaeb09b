"""The weights of a trainer over several hosts, for a reader on each of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_HOSTS, _DEVICES = "hosts", "devices"


def on_this_host(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns whole arrays that are divided among the devices of this host alone.

    Launches one computation of all hosts, so that all of them call it in the same place.

    Args:
      arrays: name -> array over the devices of all hosts, which have equally many.
    """
    devices = next(iter(arrays.values())).sharding.device_set
    hosts = len({device.process_index for device in devices})
    by_host = sorted(devices, key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.reshape(by_host, (hosts, -1)), (_HOSTS, _DEVICES))
    specs = tuple((name, _spec(a.shape, mesh.shape[_DEVICES])) for name, a in arrays.items())
    repeated = _dividing(mesh, specs)(dict(arrays))
    local = Mesh(np.array(mesh.local_devices), (_DEVICES,))
    return {
        name: jax.make_array_from_single_device_arrays(
            repeated[name].shape,
            NamedSharding(local, spec),
            [shard.data for shard in repeated[name].addressable_shards],
        )
        for name, spec in specs
    }


def _spec(shape: tuple[int, ...], count: int) -> PartitionSpec:
    """Divides the first axis that this many devices can divide; none: each has the whole array."""
    axis = next((axis for axis, size in enumerate(shape) if size and not size % count), None)
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, _DEVICES)


@functools.lru_cache(1)  # a run has one set of variables
def _dividing(mesh: Mesh, specs: tuple[tuple[str, PartitionSpec], ...]) -> Callable[..., Any]:
    shardings = {name: NamedSharding(mesh, spec) for name, spec in specs}
    return jax.jit(lambda arrays: arrays, out_shardings=shardings)
