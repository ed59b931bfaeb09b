"""Changes some elements of arrays on their devices, exact to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rlax_plugin.weights.fingerprint import NARROW

_LEAST = 1 << 10  # elements; fewer are filled up, so that few programs are compiled


def with_changes(array: jax.Array, indices: tuple[np.ndarray, ...], bits: np.ndarray) -> jax.Array:
    """A new array of the same sharding; launches one computation.

    Args:
      array: of any boolean, integer or floating dtype of at most 32 bits.
      indices: int32 [n] for each axis (one for an array without axes), without repetitions.
      bits: unsigned integers [n] of the width of the dtype.
    """
    count = len(bits)
    size = max(_LEAST, 1 << (count - 1).bit_length())
    first, *others = indices
    # Places beyond the array, each another one, are left out.
    length = array.shape[0] if array.ndim else 1
    beyond = np.arange(length, length + size - count, dtype=np.int64)
    padded = (
        np.concatenate([first, beyond.astype(np.int32)]),
        *(np.concatenate([axis, np.zeros(size - count, np.int32)]) for axis in others),
    )
    return _changer(array.sharding)(array, padded, np.resize(bits, size))


@functools.cache
def _changer(sharding: jax.sharding.Sharding) -> Callable[..., jax.Array]:
    return jax.jit(_changed, out_shardings=sharding)


def _changed(array: jax.Array, indices: tuple[jax.Array, ...], bits: jax.Array) -> jax.Array:
    # As integers: floating-point arithmetic may change the payload of NaN.
    whole = array.reshape(1) if array.ndim == 0 else array
    converts = array.dtype == np.bool_ or array.dtype.name in NARROW
    words = whole.astype(jnp.int8) if converts else whole
    words = lax.bitcast_convert_type(words, bits.dtype)
    words = words.at[indices].set(bits, mode="drop", unique_indices=True)
    found = lax.bitcast_convert_type(words, jnp.int8 if converts else array.dtype)
    return found.astype(array.dtype).reshape(array.shape)
