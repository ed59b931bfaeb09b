"""The rows of a batch that each host holds, and global arrays made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Sharding

if TYPE_CHECKING:
    from maxtext_overrides.trainer.train_loop import Loop


class HostRows:
    """Divides batches among hosts as their sharding does.

    A host holds every row of which one of its devices holds a part, so rows are held by several
    hosts where the mesh repeats them.

    Args:
      sharding: of a batch [rows, length] over the devices of all hosts.
    """

    def __init__(self, sharding: Sharding):
        self._sharding = sharding
        self._found: dict[tuple[int, tuple[int, int]], np.ndarray] = {}

    def held(self, host: int, shape: tuple[int, int]) -> np.ndarray:
        """Indices of the rows that a host holds, ascending.

        Args:
          shape: rows and length of the batch.
        """
        if (host, shape) not in self._found:
            held = np.zeros(shape[0], bool)
            # Devices may also divide the positions of a row; a host gets whole rows.
            for device, (index, _) in self._sharding.devices_indices_map(shape).items():
                if device.process_index == host:
                    held[index] = True
            self._found[host, shape] = np.flatnonzero(held)
        return self._found[host, shape]

    def share(self, host: int, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The rows of a batch that a host holds.

        Args:
          arrays: name -> [rows, length, ...].
        """
        rows, length = next(iter(arrays.values())).shape[:2]
        held = self.held(host, (rows, length))
        return {name: array[held] for name, array in arrays.items()}

    def placed(self, held: Mapping[str, np.ndarray], rows: int) -> dict[str, Any]:
        """Global arrays of a batch, of which this host gives the rows that it holds.

        Args:
          held: name -> those rows, [held rows, length, ...].
          rows: number of rows of the batch.
        """

        def placed(array: np.ndarray) -> jax.Array:
            own = self.held(jax.process_index(), (rows, array.shape[1]))

            def piece(index: tuple[slice, ...]) -> np.ndarray:
                start, stop, _ = index[0].indices(rows)
                at = int(np.searchsorted(own, start))
                return array[at : at + stop - start][(slice(None), *index[1:])]

            shape = (rows, *array.shape[1:])
            return jax.make_array_from_callback(shape, self._sharding, piece)

        return {name: placed(array) for name, array in held.items()}


def rows_of(loop: Loop) -> HostRows:
    """The rows of the batches of a loop."""
    from maxtext.utils.sharding import get_input_data_sharding

    return HostRows(get_input_data_sharding(loop.config, loop.mesh))


def local_copy(array: jax.Array) -> jax.Array:
    """The array on one device of this host, for an array that every device holds completely.

    A computation of this host alone can take it, without the other hosts.
    """
    assert array.is_fully_replicated, "every device holds all of it"
    return array.addressable_data(0)


def placed_alike(loop: Loop, arrays: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
    """Global arrays of a batch that every host has completely; unchanged with one host.

    Args:
      arrays: name -> [rows, length, ...].
    """
    if jax.process_count() == 1:
        return arrays
    rows, count = rows_of(loop), len(next(iter(arrays.values())))
    return rows.placed(rows.share(jax.process_index(), arrays), count)


def jitted(function: Callable[..., Any], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    """Compiles a function whose results every host can read."""
    if jax.process_count() == 1:
        return jax.jit(function)
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.jit(function, out_shardings=everywhere)
