"""Stores scanned weights layer after layer for decoding on a CPU.

MaxText stacks the layers of a variable along its second axis, and a scan over them takes one layer
at a time. XLA's CPU backend moves that axis to the front first, so it would copy all weights in
each decode step and in each prefill. Here they are copied once, when a version is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class LayerMajor:
    """A variable whose layers are its first axis in memory; jitted functions accept it as argument.

    Attributes:
      array: [layers, ...].
      axis: axis of the layers in the published variable.
    """

    array: jax.Array
    axis: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the published variable."""
        layers, *others = self.array.shape
        return (*others[: self.axis], layers, *others[self.axis :])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def published(self) -> jax.Array:
        """Returns the array with its published axes; free in a jitted function that scans it."""
        return jnp.moveaxis(self.array, 0, self.axis)


def layer_axes(axis_names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Returns the axis of a variable's layers by name, for variables where it is not the first.

    Args:
      axis_names: logical names of a variable's axes.
    """
    found = {}
    for name, axes in axis_names.items():
        layers = [index for index, axis in enumerate(axes) if axis.endswith("layers")]
        if layers and layers[0] > 0:
            found[name] = layers[0]
    return found


def published(arrays: Mapping[str, jax.Array | LayerMajor]) -> Iterator[dict[str, jax.Array]]:
    """Yields all arrays with their published axes, in parts that need one copy at a time."""
    yield {name: one for name, one in arrays.items() if not isinstance(one, LayerMajor)}
    for name, one in arrays.items():
        if isinstance(one, LayerMajor):
            yield {name: one.published()}


def lay_out(arrays: dict[str, Any], axes: Mapping[str, int]) -> None:
    """Replaces arrays one after the other, so that at most one of them exists twice.

    It changes nothing except on a CPU, as no other backend was measured.

    Args:
      arrays: name -> array; changed in place.
      axes: see ``layer_axes``.
    """
    if jax.default_backend() != "cpu":
        return
    for name, axis in axes.items():
        if not isinstance(arrays[name], LayerMajor):
            arrays[name] = LayerMajor(_to_front(arrays.pop(name), axis), axis)


def _to_front(array: jax.Array, axis: int) -> jax.Array:
    """Copies an array with the axis of its layers first, and waits until the copy is made."""
    sharding = array.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
        spec.insert(0, spec.pop(axis))
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
    return _mover(axis, sharding)(array).block_until_ready()


@functools.cache
def _mover(axis: int, sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    """Returns the jitted move, cached because JAX compiles again for each new function object."""
    move = functools.partial(jnp.moveaxis, source=axis, destination=0)
    return jax.jit(move, out_shardings=sharding)
