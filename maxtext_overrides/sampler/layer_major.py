"""Scanned weights as a worker's CPU holds them: layer after layer.

MaxText stacks the layers of a variable along its second axis, and a scan over them takes one layer
at a time. XLA's CPU backend moves that axis to the front first: all weights are copied anew in
each decode step and in each prefill. So they are copied once, when a version is loaded.
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
    """A variable whose layers are its first axis in memory; jitted functions take it as argument.

    Attributes:
      array: [layers, ...].
      axis: where the published variable has its layers.
    """

    array: jax.Array
    axis: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the published variable."""
        layers, *others = self.array.shape
        return (*others[: self.axis], layers, *others[self.axis :])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def published(self) -> jax.Array:
        """With its axes as they are published; in a jitted function that scans it costs nothing."""
        return jnp.moveaxis(self.array, 0, self.axis)


def layer_axes(axis_names: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Name of a variable -> the axis of its layers, for those whose first axis is another one.

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
    """All arrays with their axes as they are published, in parts: of one copy at a time."""
    yield {name: one for name, one in arrays.items() if not isinstance(one, LayerMajor)}
    for name, one in arrays.items():
        if isinstance(one, LayerMajor):
            yield {name: one.published()}


def lay_out(arrays: dict[str, Any], axes: Mapping[str, int]) -> None:
    """Replaces arrays, one after the other, so that no more than one of them is there twice.

    Nothing changes but on a CPU: no other backend was measured.

    Args:
      axes: see ``layer_axes``.
    """
    if jax.default_backend() != "cpu":
        return
    for name, axis in axes.items():
        if not isinstance(arrays[name], LayerMajor):
            arrays[name] = LayerMajor(_to_front(arrays.pop(name), axis), axis)


def _to_front(array: jax.Array, axis: int) -> jax.Array:
    """Copies an array with the axis of its layers first; it is there when this returns."""
    sharding = array.sharding
    if isinstance(sharding, jax.sharding.NamedSharding):
        spec = [*sharding.spec, *[None] * (array.ndim - len(sharding.spec))]
        spec.insert(0, spec.pop(axis))
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec))
    return _mover(axis, sharding)(array).block_until_ready()


@functools.cache
def _mover(axis: int, sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    """Kept, because JAX compiles for each function that it is given, were it the same."""
    move = functools.partial(jnp.moveaxis, source=axis, destination=0)
    return jax.jit(move, out_shardings=sharding)
