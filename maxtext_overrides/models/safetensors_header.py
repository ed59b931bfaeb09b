"""Checks the header of a safetensors file, so that a message names the tensor that is wrong.

The library makes the same checks, but mostly does not name the tensor, and of several tensors with
the same name takes the last.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LARGEST = 32 << 20  # bytes of a header; 100,000 tensors need a third of it
_MOST_AXES = 16
_METADATA = "__metadata__"
_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8}


class DamagedHeaderError(ValueError):
    """The header contradicts itself or the file's size; the message says where."""


def check(path: Path) -> None:
    """Checks that tensors have unique names and do not share bytes.

    Raises:
      DamagedHeaderError: a check fails, or the file has no such header.
      OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise DamagedHeaderError("it ends before its header does")
        if length > _LARGEST:
            raise DamagedHeaderError(f"its header has {length} bytes")
        try:
            tensors = json.loads(file.read(length), object_pairs_hook=_object)
        except DamagedHeaderError:
            raise
        except (ValueError, RecursionError) as error:
            raise DamagedHeaderError(f"its header is no JSON: {error}") from None
    if not isinstance(tensors, dict):
        raise DamagedHeaderError("its header is no JSON object")
    tensors.pop(_METADATA, None)
    places = sorted((*_place(name, tensor), name) for name, tensor in tensors.items())
    end, before = 0, ""
    for begin, stop, name in places:
        if stop > size - 8 - length:
            raise DamagedHeaderError(
                f"the tensor {name} would end at byte {stop} of {size - 8 - length}"
            )
        if begin < end:
            raise DamagedHeaderError(f"the tensors {before} and {name} overlap")
        end, before = stop, name


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(k for k, _ in pairs).items() if count > 1)
        raise DamagedHeaderError(f"it has {twice} twice")
    return found


def _place(name: str, tensor: object) -> tuple[int, int]:
    """Returns the start and end of a tensor's bytes, counted from the header's end."""
    if not isinstance(tensor, Mapping):
        raise DamagedHeaderError(f"the tensor {name} is not described by an object")
    shape, place = tensor.get("shape"), tensor.get("data_offsets")
    if not _are_sizes(shape) or not _are_sizes(place) or len(place) != 2 or place[1] < place[0]:
        raise DamagedHeaderError(f"the tensor {name} has no shape or no place: {tensor!r:.100}")
    bits, held = _BITS.get(str(tensor.get("dtype"))), (place[1] - place[0]) * 8
    if bits is not None and math.prod(shape) * bits != held:
        raise DamagedHeaderError(
            f"the tensor {name} of {tensor['dtype']} has the shape {shape!r:.100}, and "
            f"{place[1] - place[0]} bytes"
        )
    return place[0], place[1]


def _are_sizes(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > _MOST_AXES:
        return False
    return all(type(one) is int and 0 <= one < 1 << 63 for one in value)
