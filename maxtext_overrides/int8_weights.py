"""Matrices in 8 bits, with which a worker generates: QeRL, arXiv 2510.11696, with int8 for NVFP4.

W is stored as int8 values q and a float32 scale s for each output: s = max |W| / 127 over the
inputs of the output, q = round(W / s), so that s q is within s / 2 of W. s is a number of the dtype
of arithmetic, as MaxText multiplies in it. Activations are not rounded.

MaxText's own ``quantization: int8`` is another thing: MaxEngine keeps the matrices as they are, and
rounds them and the activations anew in each forward pass. But a ``DenseGeneral`` that has a
``kernel_scale`` multiplies its kernel by it, inside the scan over layers, so that one layer at a
time exists in the dtype of arithmetic. Here it is given one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtext_overrides.adapters import READ_DIRECTLY, place_of
from maxtext_overrides.layer_major import LayerMajor
from maxtext_overrides.rounding import is_cast
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.signatures import check
from rlax_plugin.base.errors import ConfigError

OVERRIDES = BY_MODULE["maxtext_overrides/int8_weights.py"]

_LARGEST = 127


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Int8:
    """A matrix in 8 bits; jitted functions accept it as argument.

    Attributes:
      values: int8, in the shape of the published variable.
      scales: float32, with size 1 along the axes of the inputs.
      dtype: that of the published variable.
    """

    values: jax.Array | LayerMajor
    scales: jax.Array | LayerMajor
    dtype: np.dtype[Any] = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape


def kernels(model: Any, config: Any) -> dict[str, tuple[int, ...]]:
    """Returns the variables that are quantised, and the axes of the inputs of each.

    These are the matrices of attention and MLPs. Embeddings, the output layer, norms, biases and
    adapters stay as they are.

    Args:
      model: MaxText's, concrete or abstract.
      config: MaxText's.

    Raises:
      ConfigError: MaxText itself quantises the model, most of it are experts, or it has no such
        matrix.
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, config.allow_untested)
    from maxtext.layers.linears import DenseGeneral

    key, name = "rlax.rollouts.engine.quantization", "int8"
    if config.quantization:
        raise ConfigError("quantization", config.quantization, f"must be empty with {key}: {name}")
    if config.num_experts > 1:
        reason = f"must be null with num_experts = {config.num_experts}: experts stay as they are"
        raise ConfigError(key, name, reason)
    found = {}
    for place, module in nnx.iter_modules(model):
        path = ".".join(map(str, place))
        kernel = f"{path}.kernel"
        is_read = place_of(path.replace(".", "/")) in READ_DIRECTLY
        if not isinstance(module, DenseGeneral) or is_read or not is_cast(kernel):
            continue
        if module.kernel_scale is not None:
            raise ConfigError(key, name, f"must be null with weight_dtype: {config.weight_dtype}")
        axes = list(range(module.kernel.get_value().ndim))
        if len(axes) > len(module.in_features_shape) + len(module.out_features_shape):
            axes.pop(config.param_scan_axis)  # that of the layers
        found[kernel] = tuple(axes[: len(module.in_features_shape)])
    if not found:
        raise ConfigError(key, name, "must be null: it matches no matrix of this model")
    return found


def convert(arrays: dict[str, Any], inputs: Mapping[str, tuple[int, ...]], dtype: Any) -> None:
    """Replaces matrices one after the other, so that at most one of them exists twice.

    Args:
      arrays: name -> array, also laid out (``layer_major``); changed in place.
      inputs: see ``kernels``.
      dtype: of arithmetic.
    """
    for name, axes in inputs.items():
        if isinstance(weight := arrays.pop(name), Int8):
            arrays[name] = weight
            continue
        if isinstance(weight, LayerMajor):
            moved = tuple(axis + (axis < weight.axis) for axis in axes)
            parts = [LayerMajor(x, weight.axis) for x in _rounded(weight.array, moved, dtype)]
        else:
            parts = _rounded(weight, axes, dtype)
        arrays[name] = jax.block_until_ready(Int8(*parts, dtype=weight.dtype))


def _rounded(weight: jax.Array, inputs: tuple[int, ...], dtype: Any) -> tuple[jax.Array, jax.Array]:
    return _rounder(inputs, np.dtype(dtype), _shardings(weight, inputs))(weight)


def _shardings(weight: Any, inputs: tuple[int, ...]) -> tuple[Any, Any]:
    """Returns the shardings of the values and of the scales."""
    if not isinstance(sharding := weight.sharding, jax.sharding.NamedSharding):
        return sharding, sharding
    spec = [*sharding.spec, *[None] * (len(weight.shape) - len(sharding.spec))]
    outputs = [None if axis in inputs else names for axis, names in enumerate(spec)]
    spec = jax.sharding.PartitionSpec(*outputs)
    return sharding, jax.sharding.NamedSharding(sharding.mesh, spec)


@functools.cache
def _rounder(inputs: tuple[int, ...], dtype: Any, shardings: Any) -> Any:
    """Returns the jitted conversion, cached because JAX compiles again for each new function."""

    def rounded(weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        weight = weight.astype(jnp.float32)
        largest = jnp.abs(weight).max(axis=inputs, keepdims=True)
        scales = (largest / _LARGEST).astype(dtype).astype(jnp.float32)
        scales = jnp.where(scales > 0, scales, 1.0)
        values = jnp.round(weight / scales).clip(-_LARGEST, _LARGEST)
        return values.astype(jnp.int8), scales

    return jax.jit(rounded, out_shardings=shardings)


def like(one: jax.ShapeDtypeStruct, inputs: tuple[int, ...]) -> Int8:
    """Returns shapes, dtypes and shardings of what ``convert`` makes of such an array."""
    of_values, of_scales = _shardings(one, inputs)
    shape = tuple(1 if axis in inputs else size for axis, size in enumerate(one.shape))
    values: Any = jax.ShapeDtypeStruct(one.shape, jnp.int8, sharding=of_values)
    scales: Any = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=of_scales)
    return Int8(values, scales, np.dtype(one.dtype))


def attach(model: Any, scales: Mapping[str, jax.Array]) -> None:
    """Gives modules the scales of their kernels.

    Args:
      scales: name of a kernel -> its scales, with the published axes.
    """
    if not scales:
        return
    for place, module in nnx.iter_modules(model):
        if (found := scales.get(".".join(map(str, (*place, "kernel"))))) is not None:
            module.kernel_scale = nnx.data(nnx.Param(found))
