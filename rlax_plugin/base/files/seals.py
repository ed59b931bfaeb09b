"""JSON documents that end with their own checksum, so that one flipped bit is noticed.

The last key of such an object is ``crc32c``, of all bytes before it.
"""

from __future__ import annotations

import json
from typing import Any

import google_crc32c

_KEY = b', "crc32c": "'


def checksum(data: bytes) -> str:
    """Returns the crc32c of some bytes, 8 hex digits."""
    return f"{google_crc32c.value(data):08x}"


def sealed(text: str) -> bytes:
    """Returns a JSON object, given as text that ends with its brace, with its checksum."""
    data = text[:-1].encode()
    return data + _KEY + checksum(data).encode() + b'"}\n'


def unsealed(data: bytes) -> dict[str, Any]:
    """Returns the object in a file's content.

    Raises:
      ValueError: it is not a JSON object, or not the one that was written.
    """
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    if (recorded := document.get("crc32c")) is None:
        raise ValueError("it has no checksum")
    if (content := checksum(data[: data.rfind(_KEY)])) != recorded:
        raise ValueError(f"its content has checksum {content}, but {recorded} was written")
    return document
