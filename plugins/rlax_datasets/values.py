"""Converts values of data set libraries to plain Python values that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Returns a value of ``datasets``, TensorFlow or NumPy as text, numbers, lists and dicts.

    Bytes become text if they are UTF-8. ``{"role": [...], "content": [...]}``, as which both
    libraries may store a list of messages, becomes that list. Unknown values, such as an image, are
    returned unchanged; using such a column is an error later.
    """
    if isinstance(value, str):
        return str(value)  # also numpy's
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return _messages({key: plain(one) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    # Rows of different lengths, as TensorFlow has them.
    return plain(value.to_list()) if hasattr(value, "to_list") else value


def _messages(found: dict[str, Any]) -> Any:
    columns = list(found.values())
    if not {"role", "content"} <= found.keys() or not all(isinstance(c, list) for c in columns):
        return found
    if len({len(column) for column in columns}) != 1:
        return found
    return [dict(zip(found, one, strict=True)) for one in zip(*columns, strict=True)]
