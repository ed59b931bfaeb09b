"""Encodes plain data as JSON between the process of the tests and that of the code.

It runs inside the sandboxes, so it imports only Python's own library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

_DEEPEST = 50
_CONTAINERS: dict[str, type] = {"l": list, "t": tuple, "u": set, "z": frozenset, "q": deque}


def _span(value: timedelta) -> str:
    return f"{value.days} {value.seconds} {value.microseconds}"


def _of_span(text: str) -> timedelta:
    return timedelta(*map(int, text.split()))


def _bounds(value: range) -> str:
    return f"{value.start} {value.stop} {value.step}"


def _of_bounds(text: str) -> range:
    return range(*map(int, text.split()))


# A datetime is a date, so it comes first.
_BY_TEXT: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "D": (Decimal, Decimal.__str__, Decimal),
    "F": (Fraction, Fraction.__str__, Fraction),
    "n": (datetime, datetime.isoformat, datetime.fromisoformat),
    "y": (date, date.isoformat, date.fromisoformat),
    "h": (time, time.isoformat, time.fromisoformat),
    "p": (timedelta, _span, _of_span),
    "r": (range, _bounds, _of_bounds),
}


def encode(value: Any, keep: Callable[[Any], Any], depth: int = 0) -> Any:
    """Returns plain data as JSON; instances of subclasses become instances of the base class.

    Args:
      value: the data.
      keep: returns the JSON for any other object.
      depth: level of nesting.
    """
    if depth > _DEEPEST:
        raise ValueError(f"data is nested more than {_DEEPEST} deep")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return ["i", int.__format__(value, "x")]
    if isinstance(value, float):
        return ["f", float.hex(value)]
    if isinstance(value, complex):
        return ["c", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, str):
        return ["s", str.__str__(value)]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "a", bytes(value).hex()]
    for mark, kind in _CONTAINERS.items():
        if isinstance(value, kind):
            return [mark, [encode(one, keep, depth + 1) for one in kind.__iter__(value)]]
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["d", [[encode(one, keep, depth + 1) for one in pair] for pair in pairs]]
    for mark, (kind, text, _) in _BY_TEXT.items():
        if isinstance(value, kind):
            return [mark, text(value)]
    return keep(value)


def decode(found: Any, kept: Callable[[Any], Any], depth: int = 0) -> Any:
    """Reads the result of ``encode``; the sender is not trusted.

    Args:
      found: the JSON.
      kept: returns the object for JSON that came from ``keep`` of ``encode``.
      depth: level of nesting.

    Raises:
      ValueError, TypeError, LookupError, ArithmeticError: it is not such a result.
    """
    if depth > _DEEPEST + 1:
        raise ValueError("data is nested too deep")
    if found is None or found is True or found is False:
        return found
    mark, *rest = found
    if mark == "i":
        return int(rest[0], 16)
    if mark == "f":
        return float.fromhex(rest[0])
    if mark == "c":
        return complex(float.fromhex(rest[0]), float.fromhex(rest[1]))
    if mark == "s":
        return str(rest[0])
    if mark in ("a", "b"):
        return (bytes if mark == "b" else bytearray).fromhex(rest[0])
    if mark in _CONTAINERS:
        return _CONTAINERS[mark](decode(one, kept, depth + 1) for one in rest[0])
    if mark == "d":
        return {decode(k, kept, depth + 1): decode(v, kept, depth + 1) for k, v in rest[0]}
    if mark in _BY_TEXT:
        return _BY_TEXT[mark][2](str(rest[0]))
    if mark == "o":
        return kept(rest[0])
    raise ValueError("unknown data")
