"""Protocol messages made wrong with a seed: field by field as protobuf encodes them, and in bytes.

A field is made wrong by appending it once more. Of a field that is not repeated the last value
counts, messages in messages are merged, and lists and maps get longer: so every field of a message
can be reached, and have what no protobuf library would write.
"""

import random
import struct
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

_F = FieldDescriptor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_INTEGERS = (0, 1, -1, 2, 99, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63))
_FLOATS = (0.0, -0.0, -1.0, 1.0, 1e-45, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
_LONG = 100_000
_TEXTS = (
    *(b"", b" ", b"a" * _LONG, "\u00e9\U0001f600".encode() * (_LONG // 8)),
    *(b"\x00", b"a\x00b", b"\x1b[2J\x07", "a\u202eb\u2066c\u2028\ufeff".encode(), b"a\nb\r\n"),
    *(b"\xed\xa0\x80", b"\xff\xfe", b"\xc3"),  # a lone surrogate, no UTF-8, half a character
    *(b"../../..", b"/", b"/..", b"%s%n{0}{}"),
)
_BLOBS = (b"", b"\x00", b"\xff" * 3, b"\x00" * 7, b"\x7f\xff\xff\xff" * 9, b"\xff" * _LONG)
_MANY, _MOST_BYTES = 3000, 5_000_000


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
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            try:
                current = type(message).FromString(data)
            except DecodeError:
                break
            if rng.random() < 0.85 and message.DESCRIPTOR.fields:
                data = _wrong_field(current, rng, texts)
            else:
                data = _wrong_bytes(data, rng)
        yield data


def _wrong_field(
    message: Message, rng: random.Random, texts: Sequence[bytes], most: int = _MANY
) -> bytes:
    """A message of which one field is missing or wrong, or a field of a message in it.

    Args:
      most: entries of a list.
    """
    present = [(field, value) for field, value in message.ListFields() if not _is_map(field)]
    inside = [(field, value) for field, value in present if field.message_type is not None]
    rest = type(message)()
    rest.CopyFrom(message)
    if inside and rng.random() < 0.6:
        field, value = rng.choice(inside)
        entries = list(value) if field.is_repeated else [value]
        place = rng.randrange(len(entries))
        rest.ClearField(field.name)
        encoded = [entry.SerializeToString() for entry in entries]
        encoded[place] = _wrong_field(entries[place], rng, texts)
        return rest.SerializeToString() + b"".join(_with_length(field, one) for one in encoded)
    if present and rng.random() < 0.15:
        rest.ClearField(rng.choice(present)[0].name)
        return rest.SerializeToString()
    if not message.DESCRIPTOR.fields:
        return b""
    field = rng.choice(message.DESCRIPTOR.fields)
    if rng.random() < 0.05:  # as another type than the field has
        wire = rng.choice((_VARINT, _FIXED64, _BYTES, _FIXED32, 3, 4, 6, 7))
        return message.SerializeToString() + _tag(field, wire) + rng.randbytes(rng.randrange(12))
    many = most if field.is_repeated and rng.random() < 0.2 else 1
    added = b"".join(_extreme(field, rng, texts) for _ in range(many))
    return message.SerializeToString() + added[:_MOST_BYTES]  # it may end within a field


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _extreme(field: FieldDescriptor, rng: random.Random, texts: Sequence[bytes]) -> bytes:
    """One field as it must not be; an entry of a map with a key that no other one has."""
    if field.message_type is not None:
        empty = GetMessageClass(field.message_type)()
        key = _with_length(field.message_type.fields[0], rng.randbytes(6).hex().encode())
        return _with_length(
            field, (key if _is_map(field) else b"") + _wrong_field(empty, rng, texts, most=1)
        )
    if field.type == _F.TYPE_STRING:
        return _with_length(field, rng.choice((*_TEXTS, *texts)))
    if field.type == _F.TYPE_BYTES:
        return _with_length(field, rng.choice(_BLOBS))
    if field.type == _F.TYPE_DOUBLE:
        return _tag(field, _FIXED64) + struct.pack("<d", rng.choice((*_FLOATS, 5e-324, 1e308)))
    if field.type == _F.TYPE_FLOAT:
        return _tag(field, _FIXED32) + struct.pack("<f", rng.choice(_FLOATS))
    if field.type in (_F.TYPE_FIXED64, _F.TYPE_FIXED32):
        wide = field.type == _F.TYPE_FIXED64
        return _tag(field, _FIXED64 if wide else _FIXED32) + rng.randbytes(8 if wide else 4)
    return _tag(field, _VARINT) + _varint(rng.choice(_INTEGERS))


def _varint(value: int) -> bytes:
    """A number as protobuf writes it; a negative one as 64 bits."""
    value &= 2**64 - 1
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def _tag(field: FieldDescriptor, wire: int) -> bytes:
    return _varint(field.number << 3 | wire)


def _with_length(field: FieldDescriptor, data: bytes) -> bytes:
    """A field that has a length: a text, bytes, or a message."""
    return _tag(field, _BYTES) + _varint(len(data)) + data


def _wrong_bytes(data: bytes, rng: random.Random) -> bytes:
    begin, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    flipped = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return rng.choice(
        (
            bytes(flipped),
            data[:begin],
            data[:begin] + rng.randbytes(rng.randint(1, 20)) + data[begin:],
            data[:end] + data[begin:end] * rng.choice((1, 2, 50)) + data[end:],
            data[:begin] + data[end:],
            rng.randbytes(rng.randrange(200)),
        )
    )
