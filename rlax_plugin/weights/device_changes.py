"""Changes some elements of arrays on their devices, exact to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlax_plugin.weights.fingerprint import NARROW

_SIZES = 1 << 10, 1 << 15, 1 << 20
"""Numbers of elements that programs are compiled for. Fewer elements are filled up."""


def with_changes(
    array: jax.Array, indices: tuple[np.ndarray, ...], bits: np.ndarray, own: bool
) -> jax.Array:
    """An array of the same sharding with some elements changed; launches one computation.

    Args:
      array: of any boolean, integer or floating dtype of at most 32 bits.
      indices: int32 [n] for each axis (one for an array without axes), without repetitions; n is at
        most 2^20.
      bits: unsigned integers [n] of the width of the dtype.
      own: True if the array's memory may be used for the new one.
    """
    count = len(bits)
    size = next(size for size in _SIZES if size >= count)
    first, *others = indices
    # Indices behind the end of the first axis are left out; no two of them are the same.
    end = array.shape[0] if array.ndim else 1
    filled = np.arange(end, end + size - count, dtype=np.int32)
    padded = (
        np.concatenate([first, filled]),
        *(np.concatenate([axis, np.zeros_like(filled)]) for axis in others),
    )
    return _changer(array.sharding, own)(array, padded, np.resize(bits, size))


@functools.cache
def _changer(sharding: jax.sharding.Sharding, own: bool) -> Callable[..., jax.Array]:
    return jax.jit(_changed, out_shardings=sharding, donate_argnums=(0,) if own else ())


def _changed(array: jax.Array, indices: tuple[jax.Array, ...], bits: jax.Array) -> jax.Array:
    # As integers: floating-point arithmetic may change the payload of NaN.
    whole = array.reshape(1) if array.ndim == 0 else array
    converts = array.dtype == np.bool_ or array.dtype.name in NARROW
    words = whole.astype(jnp.int8) if converts else whole
    words = lax.bitcast_convert_type(words, bits.dtype)
    words = words.at[indices].set(bits, mode="drop", unique_indices=True)
    found = lax.bitcast_convert_type(words, jnp.int8 if converts else array.dtype)
    return found.astype(array.dtype).reshape(array.shape)
