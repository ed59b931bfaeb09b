"""Counts the copies of a model's arrays on the devices of a mesh, without the devices.

The sizes of the mesh are those of the config. If one of them is -1, the number of devices is open,
and with it the number of copies, unless this axis divides the arrays; a processor is one device.

The upstream symbols are in ``upstream/declared.toml``; as those of ``memory``, they matter only for
an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from flax import linen, nnx
from flax.core.spmd import logical_axis_rules

from maxtext_overrides.config.loading import Config
from maxtext_overrides.upstream.lean_imports import unavailable

_OPEN = -1  # the size of an axis that takes all devices that are left
_SEVERAL = 2  # stands for an open size: MaxText leaves out axes of size 1


@dataclass(frozen=True, slots=True)
class Held:
    """Arrays of one purpose on the devices of a mesh.

    Attributes:
      nbytes: bytes of all copies together, or of one copy if their number is open.
      copies: number of copies of the largest array; None if it is open.
      devices_of_copy: number of devices that share one copy of the largest array, with 1 in place
        of an open size.
    """

    nbytes: int
    copies: int | None
    devices_of_copy: int


class MeshCopies:
    """The copies of the arrays of one model.

    Args:
      config: MaxText's.
      state: the model's abstract state.
    """

    def __init__(self, config: Config, state: nnx.State):
        with unavailable("tensorflow", "google.cloud.aiplatform"):
            from maxtext.utils import sharding

        sizes = dict(zip(config.mesh_axes, config.ici_parallelism, strict=True))
        if config.hardware == "cpu":
            sizes = {axis: 1 if size == _OPEN else size for axis, size in sizes.items()}
        self._open = {axis for axis, size in sizes.items() if size == _OPEN}
        self._sizes = {axis: 1 if size == _OPEN else int(size) for axis, size in sizes.items()}
        self._devices = math.prod(self._sizes.values())
        shape = tuple(_SEVERAL if size == _OPEN else int(size) for size in sizes.values())
        mesh = jax.sharding.AbstractMesh(shape, tuple(sizes))
        batch = linen.logical_to_mesh_axes(("activation_batch",), config.logical_axis_rules)
        self._batch_axes = _named(batch or ())
        with logical_axis_rules(config.logical_axis_rules):
            shardings = sharding.nnx_construct_named_sharding(state, mesh)
        self._axes = {
            # A quantised variable consists of several arrays.
            ".".join(map(str, path)): _named(
                entry for one in jax.tree.leaves(variable.get_value()) for entry in one.spec
            )
            for path, variable in nnx.to_flat_state(shardings)
        }

    def held(self, nbytes: Mapping[str, int]) -> Held:
        """Returns the memory of arrays that lie on the devices as the variables of these names do.

        Args:
          nbytes: variable -> bytes of one copy.
        """
        if not nbytes:
            return Held(0, 1, 1)
        largest = max(nbytes, key=lambda name: nbytes[name])
        shards = self._shards(largest)
        if self._open - self._axes[largest]:
            return Held(sum(nbytes.values()), None, shards)
        total = sum(size * self._devices // self._shards(name) for name, size in nbytes.items())
        return Held(total, self._devices // shards, shards)

    def in_parts(self, nbytes: Mapping[str, int]) -> int:
        """Returns the bytes of the parts of arrays that the devices which hold a copy compute with.

        Each of these devices computes for another part of the batch. There are no parts if the
        batch is not divided beyond the arrays; if the number of copies is open, they do not count.

        Args:
          nbytes: see ``held``; every array has an element for each sequence of the batch.
        """
        total = 0
        for name, size in nbytes.items():
            parts = math.prod(self._sizes[axis] for axis in self._batch_axes - self._axes[name])
            if parts > 1 and self._open <= self._axes[name]:
                total += size * self._devices // self._shards(name) // parts
        return total

    def _shards(self, name: str) -> int:
        return math.prod(self._sizes[axis] for axis in self._axes[name])


def _named(entries: Iterable[Any]) -> set[str]:
    """Returns the axes of the mesh in the entries of partition specs."""
    named = ([entry] if isinstance(entry, str) else entry or () for entry in entries)
    return {axis for axes in named for axis in axes}
