"""The fingerprint that ``fingerprint.py`` defines, computed on the weights' own devices."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlax_plugin.weights.fingerprint import NARROW, VIEWS, name_factor, weight, word

_BLOCK = 1 << 16  # elements; the running sums of one block stay in a core's second-level cache


def fingerprint(arrays: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Fingerprints on device, one pass over memory, no host copy.

    Launches one computation: call it where JAX work may be launched.

    Args:
      arrays: name -> array of any shape, sharding and boolean, integer or floating dtype.

    Returns:
      name -> uint32 scalar, replicated over the arrays' devices.

    Raises:
      TypeError: a dtype without a bit view of 1, 2, 4 or 8 bytes.
    """
    # XLA's CPU backend does not vectorise a reduction fused with what it reduces (2 ns an
    # element); adding block after block in a loop takes a tenth. Elsewhere, and where the flat
    # array is spread over devices, the plain form is the right one.
    blocked = all(
        len(a.sharding.device_set) == 1 and next(iter(a.sharding.device_set)).platform == "cpu"
        for a in arrays.values()
    )
    return _fingerprint(dict(arrays), blocked)


@functools.partial(jax.jit, static_argnums=1)
def _fingerprint(arrays: dict[str, jax.Array], blocked: bool) -> dict[str, jax.Array]:
    total = _blocked_sum if blocked else _whole_sum
    return {name: total(a) * name_factor(name) for name, a in arrays.items()}


def _bits(array: jax.Array) -> jax.Array:
    """Unsigned view: uint8, uint16 or uint32 of the same shape; [..., 2] for 64-bit dtypes."""
    dtype = np.dtype(array.dtype)
    if dtype == np.bool_ or dtype.name in NARROW:
        return lax.bitcast_convert_type(array.astype(jnp.int8), jnp.uint8)
    view = VIEWS.get(dtype.itemsize)
    if view is None or dtype.kind == "c":
        raise TypeError(f"no fingerprint for {dtype}")
    return lax.bitcast_convert_type(array, view)


def _terms(values: jax.Array, index: jax.Array | np.ndarray) -> jax.Array:
    """The summands: uint32, of the shape of ``values`` ([..., 2] for 64-bit dtypes)."""
    bits = _bits(values)
    if bits.ndim > values.ndim:
        index = jnp.stack([2 * index, 2 * index + 1], axis=-1)
    return word(bits.astype(jnp.uint32)) * weight(index)


def _whole_sum(array: jax.Array) -> jax.Array:
    """One fused reduction; the flat index is built per axis, so that it shards like the array."""
    index, stride = jnp.zeros(array.shape, jnp.uint32), 1
    for axis in reversed(range(array.ndim)):
        along = lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        index, stride = index + along * np.uint32(stride & 0xFFFFFFFF), stride * array.shape[axis]
    return jnp.sum(_terms(array, index), dtype=jnp.uint32)


def _blocked_sum(array: jax.Array) -> jax.Array:
    """The same sum, block after block, for an array that one device holds.

    The bit view is taken inside the loop: XLA would write a view of the whole array to memory.
    """
    if array.size >= 2**31:  # beyond an int32 counter
        return _whole_sum(array)
    flat = array.reshape(-1)
    count = flat.size // _BLOCK
    rest = np.arange(count * _BLOCK, flat.size, dtype=np.uint32)
    total = jnp.sum(_terms(flat[count * _BLOCK :], rest), dtype=jnp.uint32)
    if count == 0:
        return total
    offsets = lax.iota(jnp.uint32, _BLOCK)

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        start = i * _BLOCK
        terms = _terms(
            lax.dynamic_slice(flat, (start,), (_BLOCK,)), start.astype(jnp.uint32) + offsets
        )
        return sums + (terms if terms.ndim == 1 else jnp.sum(terms, axis=-1, dtype=jnp.uint32))

    sums = lax.fori_loop(0, count, add, jnp.zeros(_BLOCK, jnp.uint32))
    return total + jnp.sum(sums, dtype=jnp.uint32)
