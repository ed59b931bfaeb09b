"""A uint32 per tensor that tells whether a device holds the weights that were published.

For a tensor called ``name`` with elements ``x_i``, i the row-major flat index::

    fingerprint = odd(hash(name)) * sum_i word(x_i) * odd(i)   (mod 2^32)

``word`` maps an element's bits one-to-one to 32 bits and ``odd`` always yields an odd number, so
any change of a single element changes the sum: an odd factor is invertible modulo 2^32. Swapped
elements, swapped tensors and renamed tensors change it too, up to collisions of 2^-32 or so. A
64-bit element counts as two neighbouring 32-bit elements, low half first.

The sum is associative in integers, so the value does not depend on sharding, order or backend.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_GOLDEN = np.uint32(0x9E3779B1)  # 2^32 / golden ratio, odd: scatters neighbouring indices
_BLOCK = 8192  # elements; a block's intermediate values stay in a core's first-level cache


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
    return {name: total(_bits(a)) * _name_factor(name) for name, a in arrays.items()}


def fingerprint_numpy(arrays: Mapping[str, np.ndarray]) -> dict[str, np.uint32]:
    """The same numbers on the host, by the definition; the reference for tests and tools."""
    return {
        name: np.uint32(_numpy_sum(np.asarray(a)) * int(_name_factor(name)) & 0xFFFFFFFF)
        for name, a in arrays.items()
    }


def _name_factor(name: str) -> np.uint32:
    return np.uint32(zlib.crc32(name.encode()) | 1)


def _weight(index: Any) -> Any:
    """Odd factors for uint32 indices; scattered, so that moved blocks do not cancel."""
    mixed = index * _GOLDEN
    return (mixed ^ (mixed >> np.uint32(15))) | np.uint32(1)


def _word(bits: Any) -> Any:
    """uint32 to uint32, one to one. Folds the high half in: float32 values that came from
    bfloat16 have 16 zero bits below, and a multiplication would push most of the rest out."""
    return bits ^ (bits >> np.uint32(16))


def _bits(array: jax.Array) -> jax.Array:
    """Unsigned view: uint8, uint16 or uint32 of the same shape; [..., 2] for 64-bit dtypes."""
    dtype = np.dtype(array.dtype)
    if dtype == np.bool_:
        return array.astype(jnp.uint8)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return array.astype(jnp.int8).view(jnp.uint8)
    view = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}.get(dtype.itemsize)
    if view is None or not jnp.issubdtype(dtype, jnp.number) or dtype.kind == "c":
        raise TypeError(f"no fingerprint for {dtype}")
    return lax.bitcast_convert_type(array, view)


def _terms(bits: jax.Array, index: jax.Array) -> jax.Array:
    return _word(bits.astype(jnp.uint32)) * _weight(index)


def _whole_sum(bits: jax.Array) -> jax.Array:
    """One fused reduction; the flat index is built per axis, so that it shards like the array."""
    index, stride = jnp.zeros(bits.shape, jnp.uint32), 1
    for axis in reversed(range(bits.ndim)):
        along = lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
        index, stride = index + along * np.uint32(stride & 0xFFFFFFFF), stride * bits.shape[axis]
    return jnp.sum(_terms(bits, index), dtype=jnp.uint32)


def _blocked_sum(bits: jax.Array) -> jax.Array:
    """The same sum, block after block; for an array that one device holds."""
    flat = bits.reshape(-1)
    blocks, offsets = flat.size // _BLOCK, lax.iota(jnp.uint32, _BLOCK)

    def add(i: jax.Array, sums: jax.Array) -> jax.Array:
        block = lax.dynamic_slice(flat, (i * _BLOCK,), (_BLOCK,))
        return sums + _terms(block, i.astype(jnp.uint32) * np.uint32(_BLOCK) + offsets)

    # int64 counters where x64 is on; more than 2^31 elements in one array need it.
    sums = lax.fori_loop(0, blocks, add, jnp.zeros(_BLOCK, jnp.uint32))
    done = blocks * _BLOCK
    rest = np.arange(done, flat.size, dtype=np.uint64).astype(np.uint32)
    return jnp.sum(sums, dtype=jnp.uint32) + jnp.sum(_terms(flat[done:], rest), dtype=jnp.uint32)


def _numpy_sum(array: np.ndarray) -> int:
    if array.dtype.itemsize * array.size == 0:
        return 0
    if array.dtype != np.bool_ and array.dtype.kind != "c" and array.dtype.itemsize in (1, 2, 4, 8):
        view = {1: np.uint8, 2: np.uint16}.get(array.dtype.itemsize, np.uint32)
        if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
            array = array.astype(np.int8)
        bits = np.ascontiguousarray(array).reshape(-1).view(view)
    elif array.dtype == np.bool_:
        bits = array.reshape(-1).astype(np.uint8)
    else:
        raise TypeError(f"no fingerprint for {array.dtype}")
    total = 0
    for start in range(0, bits.size, 1 << 20):
        block = _word(bits[start : start + (1 << 20)].astype(np.uint32))
        index = np.arange(start, start + block.size, dtype=np.uint64).astype(np.uint32)
        total += int(np.sum(block * _weight(index), dtype=np.uint32))
    return total & 0xFFFFFFFF
