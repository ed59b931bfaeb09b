"""A uint32 per tensor that shows if a device holds the weights that were published.

For a tensor called ``name`` with elements ``x_i``, i the row-major flat index::

    fingerprint = odd(hash(name)) * sum_i word(x_i) * odd(i)   (mod 2^32)

``word`` maps an element's bits one-to-one to 32 bits and ``odd`` always yields an odd number, so
any change of a single element changes the sum: an odd factor is invertible modulo 2^32. Swapped
elements, swapped tensors and renamed tensors change it too, up to collisions of 2^-32 or so. A
64-bit element counts as two neighbouring 32-bit elements, low half first.

The sum is associative in integers, so the value does not depend on sharding, order or backend.
``device_fingerprint.py`` computes it where the weights are; this module imports no JAX.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

_GOLDEN = np.uint32(0x9E3779B1)  # 2^32 / golden ratio, odd: scatters neighbouring indices
VIEWS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint32}  # by bytes of an element
NARROW = ("int2", "int4", "uint2", "uint4")  # stored one to a byte on the host


def fingerprint_numpy(arrays: Mapping[str, np.ndarray]) -> dict[str, np.uint32]:
    """Fingerprints of arrays on the host, by the definition.

    Args:
      arrays: name -> array of any shape and boolean, integer or floating dtype, ml_dtypes' too.

    Raises:
      TypeError: a dtype without a bit view of 1, 2, 4 or 8 bytes.
    """
    return {
        name: np.uint32(_numpy_sum(np.asarray(a)) * int(name_factor(name)) & 0xFFFFFFFF)
        for name, a in arrays.items()
    }


def name_factor(name: str) -> np.uint32:
    """odd(hash(name))."""
    return np.uint32(zlib.crc32(name.encode()) | 1)


def weight(index: Any) -> Any:
    """Odd factors for uint32 indices; scattered, so that moved blocks do not cancel."""
    mixed = index * _GOLDEN
    return (mixed ^ (mixed >> np.uint32(15))) | np.uint32(1)


def word(bits: Any) -> Any:
    """A one-to-one mapping from uint32 to uint32, which folds the high half into the low half.

    float32 values that came from bfloat16 have 16 low bits of 0, and a multiplication would push
    most of the others out.
    """
    return bits ^ (bits >> np.uint32(16))


def _numpy_sum(array: np.ndarray) -> int:
    if array.dtype == np.bool_ or array.dtype.name in NARROW:
        array = array.astype(np.int8)
    view = VIEWS.get(array.dtype.itemsize)
    if view is None or array.dtype.kind == "c":
        raise TypeError(f"no fingerprint for {array.dtype}")
    bits = np.ascontiguousarray(array).reshape(-1).view(view)  # a 64-bit element becomes two
    total = 0
    for start in range(0, bits.size, 1 << 20):
        block = word(bits[start : start + (1 << 20)].astype(np.uint32))
        index = np.arange(start, start + block.size, dtype=np.uint64).astype(np.uint32)
        total += int(np.sum(block * weight(index), dtype=np.uint32))
    return total & 0xFFFFFFFF


def digest(fingerprints: Mapping[str, int]) -> str:
    """A version's digest, 8 hex digits: equal for equal names and fingerprints."""
    lines = "".join(f"{name} {int(fingerprints[name])}\n" for name in sorted(fingerprints))
    return f"{zlib.crc32(lines.encode()):08x}"
