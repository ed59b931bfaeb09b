"""Weights in which low-rank adapters are added to their base, for a model that has no adapters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maxtext_overrides.adapters import is_adapter
from maxtext_overrides.models.reading import StoredWeights
from rlax_plugin.base.errors import ConfigError


class MergedWeights:
    """``StoredWeights``: W + (alpha / rank) A B, in float32, where there is an adapter.

    Args:
      base: the base; adapters in it are left out.
      adapters: the adapters; other variables in it are left out.
      scale: alpha / rank.
      axis: axis of the layers of stacked matrices, MaxText's ``param_scan_axis``.

    Raises:
      ConfigError: an adapter has no matrix, or is half of one.
    """

    def __init__(self, base: StoredWeights, adapters: StoredWeights, scale: float, axis: int):
        self._base, self._adapters, self._scale, self._axis = base, adapters, scale, axis
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: shape for name, shape in base.shapes.items() if not is_adapter(name)
        }
        names = set(filter(is_adapter, adapters.shapes))
        self._adapted = {name.removesuffix("_lora_a").removesuffix("_lora_b") for name in names}
        wanted = {f"{name}_lora_{half}" for name in self._adapted for half in "ab"}
        if unequal := sorted((wanted ^ names) | (self._adapted - self.shapes.keys())):
            raise ConfigError(f"weights: {unequal[0]}", None, "is not in them")
        if not names:
            raise ConfigError("lora.enable_lora", True, "the weights have no adapters")

    def take(self, name: str) -> np.ndarray:
        """See ``StoredWeights``."""
        kernel = self._base.take(name)
        if name not in self._adapted:
            return kernel
        names = (f"{name}_lora_{half}" for half in "ab")
        kernel, a, b = (
            np.asarray(array, np.float32) for array in (kernel, *map(self._adapters.take, names))
        )
        if a.ndim == 2:
            return kernel + np.float32(self._scale) * (a @ b).reshape(kernel.shape)
        a, b, kernel = (np.moveaxis(array, self._axis, 0) for array in (a, b, kernel))
        return np.moveaxis(
            kernel + np.float32(self._scale) * (a @ b).reshape(kernel.shape), 0, self._axis
        )
