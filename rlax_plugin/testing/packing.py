"""Arrays as one block of bytes that knows whether it is whole: an ``.npz`` with a crc32c behind."""

from __future__ import annotations

import io
from typing import cast

import google_crc32c
import numpy as np

from rlax_plugin.protocols import Arrays

_CHECKSUM_BYTES = 4


def pack(arrays: Arrays) -> bytes:
    """The bytes of a file that ``unpack`` reads; ``numpy.load`` does as well."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(a) for name, a in arrays.items()})
    content = buffer.getvalue()
    return content + _checksum(content)


def unpack(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file.

    Raises:
      ValueError: a byte of it is not what was written.
    """
    content, expected = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if not content or _checksum(content) != expected:
        raise ValueError(f"its {len(data)} bytes have another crc32c than {expected.hex()}")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        return dict(file)


def _checksum(content: bytes) -> bytes:
    return cast(int, google_crc32c.value(content)).to_bytes(_CHECKSUM_BYTES, "big")
