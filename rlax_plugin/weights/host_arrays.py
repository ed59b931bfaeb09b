"""The weights of a trainer over several hosts, for a reader on each of them."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

_HOSTS, _DEVICES = "hosts", "devices"


def on_this_host(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns whole arrays that are divided among the devices of this host alone.

    Launches computations of all hosts, so that all of them call it in the same place.

    Args:
      arrays: name -> array over the devices of all hosts, which have equally many; in any order.
    """
    devices = next(iter(arrays.values())).sharding.device_set
    hosts = len({device.process_index for device in devices})
    by_host = sorted(devices, key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.reshape(by_host, (hosts, -1)), (_HOSTS, _DEVICES))
    local = Mesh(np.array(mesh.local_devices), (_DEVICES,))
    specs = {name: _spec(a.shape, mesh.shape[_DEVICES]) for name, a in arrays.items()}
    repeated = jax.device_put(
        dict(arrays), {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    )
    return {
        name: jax.make_array_from_single_device_arrays(
            array.shape,
            NamedSharding(local, specs[name]),
            [shard.data for shard in array.addressable_shards],
        )
        for name, array in repeated.items()
    }


def _spec(shape: tuple[int, ...], count: int) -> PartitionSpec:
    """Divides the first axis that this many devices can divide; none: each has the whole array."""
    axis = next((axis for axis, size in enumerate(shape) if size and not size % count), None)
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, _DEVICES)
