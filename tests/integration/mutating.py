"""Protocol messages made wrong with a seed: field by field as protobuf encodes them, and in bytes.

A field is made wrong by appending it once more. Of a field that is not repeated the last value
counts, messages in messages are merged, and lists and maps get longer: so every field of a message
can be reached, and have what no protobuf library would write.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

_F = FieldDescriptor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_INTEGERS = (0, 1, -1, 2, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63))
_ENUMS = (0, 1, 2, 3, 99, -1, 2**31 - 1, -(2**31))
_FLOATS = (0.0, -0.0, -1.0, 1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
_DOUBLES = (*_FLOATS, 5e-324, 1e308, -1e308)
_LONG = 100_000
_TEXTS = (
    b"",
    b" ",
    b"a" * _LONG,
    "\u00e9\U0001f600".encode() * (_LONG // 8),
    b"\x00",
    b"a\x00b",
    b"\x1b[2J\x07",
    "a\u202eb\u2066c".encode(),
    "\u2028\u2029\ufeff".encode(),
    b"\xed\xa0\x80",  # a lone surrogate
    b"\xff\xfe",
    b"\xc3",  # half a character
    b"a\nb\r\n",
    b"../../..",
    b"/",
    b"/..",
    b"%s%n{0}{}",
)
_BLOBS = (
    b"",
    b"\x00",
    b"\xff" * 3,
    b"\xff" * 4,
    b"\x00" * 7,
    b"\x7f\xff\xff\xff" * 9,
    b"\xff" * _LONG,
)
_MANY = 3000
_DEEPEST = 5
_VARINTS = {_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL}
_ZIGZAGS = {_F.TYPE_SINT32, _F.TYPE_SINT64}


def varint(value: int) -> bytes:
    """A number as protobuf writes it; a negative one as 64 bits."""
    value &= 2**64 - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def encoded(number: int, data: bytes) -> bytes:
    """A field that has a length: a text, bytes, or a message."""
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def fields(kind: Descriptor, depth: int = _DEEPEST) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The ways to all fields of a message, also those of messages in it."""
    for field in kind.fields:
        yield (field,)
        if field.message_type is not None and depth:
            for rest in fields(field.message_type, depth - 1):
                yield (field, *rest)


def _extreme(field: FieldDescriptor, rng: random.Random, texts: Sequence[bytes]) -> bytes:
    """One field as it must not be."""
    number, kind = field.number, field.type
    if kind in _VARINTS or kind == _F.TYPE_ENUM:
        value = rng.choice(_ENUMS if kind == _F.TYPE_ENUM else _INTEGERS)
        return varint(number << 3 | _VARINT) + varint(value)
    if kind in _ZIGZAGS:
        value = rng.choice(_INTEGERS)
        return varint(number << 3 | _VARINT) + varint((value << 1) ^ (value >> 63))
    if kind == _F.TYPE_DOUBLE:
        return varint(number << 3 | _FIXED64) + struct.pack("<d", rng.choice(_DOUBLES))
    if kind == _F.TYPE_FLOAT:
        return varint(number << 3 | _FIXED32) + struct.pack("<f", rng.choice(_FLOATS))
    if kind == _F.TYPE_FIXED64:
        return varint(number << 3 | _FIXED64) + rng.randbytes(8)
    if kind == _F.TYPE_STRING:
        return encoded(number, rng.choice((*_TEXTS, *texts)))
    if kind == _F.TYPE_BYTES:
        return encoded(number, rng.choice(_BLOBS))
    return encoded(number, b"")


def _entry(field: FieldDescriptor, rng: random.Random, texts: Sequence[bytes]) -> bytes:
    """One more entry of a list or a map, with a key that no other one has."""
    if field.message_type is None:
        return _extreme(field, rng, texts)
    inside = b""
    if field.message_type.GetOptions().map_entry:
        inside = encoded(1, rng.randbytes(6).hex().encode())
    elif len(field.message_type.fields):
        inside = _extreme(rng.choice(field.message_type.fields), rng, texts)
    return encoded(field.number, inside)


def _wrong_field(
    data: bytes, message: Message, rng: random.Random, texts: Sequence[bytes]
) -> bytes:
    way = rng.choice(list(fields(message.DESCRIPTOR)))
    last = way[-1]
    if last.is_repeated and rng.random() < 0.2:
        added = b"".join(_entry(last, rng, texts) for _ in range(_MANY))
        added = added[: 50 * _LONG]  # it may end within a field
    elif rng.random() < 0.05:  # as another type than the field has
        wire = rng.choice((_VARINT, _FIXED64, _BYTES, _FIXED32, 3, 4, 6, 7))
        added = varint(last.number << 3 | wire) + rng.randbytes(rng.randrange(12))
    else:
        added = _extreme(last, rng, texts)
    try:
        return _at(way, type(message).FromString(data), added, rng)
    except DecodeError:
        for field in reversed(way[:-1]):
            added = encoded(field.number, added)
        return data + added


def _at(
    way: Sequence[FieldDescriptor], message: Message, added: bytes, rng: random.Random
) -> bytes:
    """A message with bytes added to one of the messages in it."""
    field = way[0]
    if len(way) == 1:
        return message.SerializeToString() + added
    listed = field.is_repeated and not field.message_type.GetOptions().map_entry
    inside = list(getattr(message, field.name)) if listed else []
    if not listed and field.is_repeated and (keys := list(getattr(message, field.name))):
        key = field.message_type.fields_by_name["key"]
        if key.type == _F.TYPE_STRING:  # of a map: what is there gets another value
            added = encoded(1, rng.choice(keys).encode()) + added
    if not inside:  # protobuf merges what comes twice
        return message.SerializeToString() + encoded(
            field.number, _at(way[1:], _empty(field), added, rng)
        )
    place = rng.randrange(len(inside))
    rest = type(message)()
    rest.CopyFrom(message)
    rest.ClearField(field.name)
    entries = [one.SerializeToString() for one in inside]
    entries[place] = _at(way[1:], inside[place], added, rng)
    return rest.SerializeToString() + b"".join(encoded(field.number, one) for one in entries)


def _empty(field: FieldDescriptor) -> Message:
    return GetMessageClass(field.message_type)()


def _cleared(message: Message, rng: random.Random) -> bytes:
    """Without a field that is set, perhaps one of a message in it; or with entries twice."""
    whole = type(message)()
    whole.CopyFrom(message)
    one: Any = whole
    while True:
        present = [field for field, _ in one.ListFields()]
        if not present:
            return whole.SerializeToString()
        field = rng.choice(present)
        value = getattr(one, field.name)
        if field.message_type is None or rng.random() < 0.4:
            break
        if not field.is_repeated:
            one = value
        elif field.message_type.GetOptions().map_entry or not len(value):
            break
        else:
            one = rng.choice(value)
    mapped = field.message_type is not None and field.message_type.GetOptions().map_entry
    if field.is_repeated and not mapped and rng.random() < 0.5:
        value.MergeFrom(list(value))
    else:
        one.ClearField(field.name)
    return whole.SerializeToString()


def _wrong_bytes(data: bytes, rng: random.Random) -> bytes:
    place, other = (rng.randrange(len(data) + 1) for _ in range(2))
    begin, end = min(place, other), max(place, other)
    how = rng.randrange(6)
    if how == 0:
        changed = bytearray(data)
        for _ in range(rng.randint(1, 8) if data else 0):
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    if how == 1:
        return data[:place]
    if how == 2:
        return data[:place] + rng.randbytes(rng.randint(1, 20)) + data[place:]
    if how == 3:
        return data[:end] + data[begin:end] * rng.choice((1, 2, 50)) + data[end:]
    if how == 4:
        return data[:begin] + data[end:]
    return rng.randbytes(rng.randrange(200))


def mutations(
    messages: Callable[[], Message], seed: int, texts: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """Endless messages that are wrong, or at least unusual, in one to three ways.

    Args:
      messages: makes a valid one, which may differ from call to call.
      texts: more values of texts than those that are strange everywhere.
    """
    rng = random.Random(seed)
    while True:
        message = messages()
        data = message.SerializeToString()
        if rng.random() < 0.15:
            data = _cleared(message, rng)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if rng.random() < 0.85 and message.DESCRIPTOR.fields:
                data = _wrong_field(data, message, rng, texts)
            else:
                data = _wrong_bytes(data, rng)
        yield data
