"""Reads the header of a GGUF file: its values, and the locations of its tensors.

The file is not trusted: a length is compared with the remaining size of the file before anything
is read or allocated, and each tensor must begin where the one before it ends, as in ggml. The
reader of the package ``gguf`` is not used because it maps the file and makes several arrays of each
value, recurses into nested arrays, multiplies sizes modulo 2**64, and accepts files of the other
byte order, whose tensors would then be read in this machine's.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT_KEY, _ALIGNMENT = "general.alignment", 32
_MOST_BYTES = 128 << 20  # of a header; that of Gemma 3, with 262,144 tokens, has 16 MB
_MOST_ENTRIES = 1 << 16  # values, and tensors
_MOST_AXES = 4  # as ggml has it
_NUMBERS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


class DamagedHeaderError(ValueError):
    """The header contradicts itself or the file's size; the message says where."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """The location and layout of a tensor in the file.

    Attributes:
      name: as in the file.
      kind: quantisation type.
      shape: slowest axis first, as numpy has it.
      offset: position of its first byte in the file.
      nbytes: size in the file.
    """

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufHeader:
    """The header of one file.

    Attributes:
      tensors: the tensors in the order of the file.

    Raises:
      DamagedHeaderError: the file has no GGUF header, or a broken one.
      OSError: the file cannot be read.
    """

    def __init__(self, path: Path):
        with path.open("rb") as file:
            size = path.stat().st_size
            self._values, self.tensors = _read(_Cursor(file, size), size)

    @property
    def keys(self) -> Collection[str]:
        return self._values.keys()

    def value(self, key: str) -> Any:
        """Returns a number, bool, text, or a list of these; None if the key is missing.

        Raises:
          ValueError: a text is not UTF-8.
        """
        found = self._values.get(key)
        if isinstance(found, np.ndarray):
            return found.tolist()
        if isinstance(found, list):
            return [text.decode() for text in found]
        return found.decode() if isinstance(found, bytes) else found


class _Cursor:
    """Reads a file from its beginning, and never more than the file holds.

    Args:
      file: the open file.
      size: size of the file in bytes.
    """

    def __init__(self, file: BinaryIO, size: int):
        self._file, self._size, self.at = file, size, 0

    def take(self, count: int) -> bytes:
        """Returns the next bytes."""
        if count > self._size - self.at:
            raise DamagedHeaderError("it ends too early")
        if count > _MOST_BYTES - self.at:
            raise DamagedHeaderError(f"its header has more than {_MOST_BYTES >> 20} MiB")
        found = self._file.read(count)
        if len(found) != count:
            raise DamagedHeaderError("it ends too early")
        self.at += count
        return found

    def u32(self) -> int:
        return _U32.unpack(self.take(4))[0]

    def u64(self) -> int:
        return _U64.unpack(self.take(8))[0]

    def text(self) -> bytes:
        return self.take(self.u64())


def _read(cursor: _Cursor, size: int) -> tuple[Mapping[str, Any], Sequence[GgufTensor]]:
    """Returns the values by key, and the tensors."""
    if cursor.take(4) != _MAGIC:
        raise DamagedHeaderError("it does not begin with GGUF")
    version = cursor.u32()
    if version & 0xFFFF == 0:
        raise DamagedHeaderError("its bytes are in big-endian order, which is not supported")
    if version not in _VERSIONS:
        raise DamagedHeaderError(f"it has version {version} of the format; supported: 2 and 3")
    tensors, count = cursor.u64(), cursor.u64()
    for number, what in ((tensors, "tensors"), (count, "values")):
        if number > _MOST_ENTRIES:
            raise DamagedHeaderError(f"it announces {number} {what}, or it ends too early")
    values: dict[str, Any] = {}
    for _ in range(count):
        key = _decoded(cursor.text(), "a key")
        if key in values:
            raise DamagedHeaderError(f"it has {key} twice")
        values[key] = _value(cursor, key)
    described = [_described(cursor) for _ in range(tensors)]
    alignment = _alignment(values)
    return values, _placed(described, _up(cursor.at, alignment), alignment, size)


def _decoded(text: bytes, what: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise DamagedHeaderError(f"the name of {what} is no UTF-8") from None


def _kind(number: int, key: str) -> GGUFValueType:
    try:
        return GGUFValueType(number)
    except ValueError:
        raise DamagedHeaderError(f"{key} has the unknown type {number}") from None


def _value(cursor: _Cursor, key: str) -> Any:
    """Returns a value in the form it is stored: texts as bytes, lists of numbers as arrays."""
    kind = _kind(cursor.u32(), key)
    if kind == GGUFValueType.STRING:
        return cursor.text()
    if kind != GGUFValueType.ARRAY:
        return _numbers(cursor, kind, 1)[0].item()
    kind, count = _kind(cursor.u32(), key), cursor.u64()
    if kind == GGUFValueType.ARRAY:
        raise DamagedHeaderError(f"{key} is an array of arrays, which is not supported")
    if kind == GGUFValueType.STRING:
        return [cursor.text() for _ in range(count)]
    return _numbers(cursor, kind, count)


def _numbers(cursor: _Cursor, kind: GGUFValueType, count: int) -> np.ndarray:
    dtype = np.dtype(_NUMBERS[kind])
    return np.frombuffer(cursor.take(count * dtype.itemsize), dtype)


def _described(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Returns (name, shape, type, offset after the header) of a tensor, as the file states them."""
    name = _decoded(cursor.text(), "a tensor")
    axes = cursor.u32()
    if not 0 < axes <= _MOST_AXES:
        raise DamagedHeaderError(f"the tensor {name} has {axes} axes; supported: 1 to {_MOST_AXES}")
    shape = tuple(cursor.u64() for _ in range(axes))[::-1]  # the file has the fastest axis first
    return name, shape, cursor.u32(), cursor.u64()


def _up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _alignment(values: Mapping[str, Any]) -> int:
    alignment = values.get(_ALIGNMENT_KEY, _ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise DamagedHeaderError(f"{_ALIGNMENT_KEY} must be a power of two, not {alignment!r:.40}")
    return alignment


def _placed(
    described: Sequence[tuple[str, tuple[int, ...], int, int]],
    start: int,
    alignment: int,
    size: int,
) -> Sequence[GgufTensor]:
    """Returns the tensors after checking that each lies inside the file, right after the last."""
    found: dict[str, GgufTensor] = {}
    expected = 0
    for name, shape, number, offset in described:
        if name in found:
            raise DamagedHeaderError(f"it has the tensor {name} twice")
        found[name] = tensor = _tensor(name, shape, number, start + offset)
        if offset != expected:
            raise DamagedHeaderError(
                f"the tensor {name} begins at byte {offset} of the tensors, expected {expected}"
            )
        expected = _up(offset + tensor.nbytes, alignment)
        if tensor.offset + tensor.nbytes > size:
            raise DamagedHeaderError(
                f"the tensor {name}, of shape {list(shape)}, would end at byte "
                f"{tensor.offset + tensor.nbytes}, and the file has {size}"
            )
    return list(found.values())


def _tensor(name: str, shape: tuple[int, ...], number: int, offset: int) -> GgufTensor:
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise DamagedHeaderError(f"the tensor {name} has the unknown type {number}") from None
    if 0 in shape:
        raise DamagedHeaderError(f"the tensor {name} is empty: its shape is {list(shape)}")
    if shape[-1] % block:
        raise DamagedHeaderError(
            f"the tensor {name} has rows of {shape[-1]} numbers, and {kind.name} has blocks of "
            f"{block}"
        )
    return GgufTensor(name, kind, shape, offset, math.prod(shape) // block * block_bytes)
