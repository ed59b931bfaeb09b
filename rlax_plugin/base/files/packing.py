"""Arrays as one block of bytes with a checksum: an ``.npz`` followed by its crc32c."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, cast

import google_crc32c
import ml_dtypes  # noqa: F401  registers bfloat16 and its like under their names
import numpy as np

_CHECKSUM_BYTES = 4
_AS = "::"  # between the name and the dtype of an array whose dtype a numpy file cannot hold


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a file that ``unpack`` and ``numpy.load`` can read.

    Raises:
      ValueError: an array contains Python objects.
    """
    buffer = io.BytesIO()
    stored = dict(_stored(name, np.asarray(array)) for name, array in arrays.items())
    np.savez(buffer, allow_pickle=False, **stored)
    content = buffer.getvalue()
    return content + _checksum(content)


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of a file.

    Raises:
      ValueError: the file is damaged.
    """
    content, expected = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if not content or _checksum(content) != expected:
        raise ValueError(f"its {len(data)} bytes have another crc32c than {expected.hex()}")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(_restored(name, array) for name, array in file.items())


def _stored(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    if array.dtype.kind != "V":
        return name, array
    return f"{name}{_AS}{array.dtype.name}", array.view(f"u{array.dtype.itemsize}")


def _restored(name: str, array: np.ndarray) -> tuple[str, np.ndarray]:
    name, _, dtype = name.partition(_AS)
    return name, array.view(dtype) if dtype else array


def _checksum(content: bytes) -> bytes:
    return cast(int, google_crc32c.value(content)).to_bytes(_CHECKSUM_BYTES, "big")
