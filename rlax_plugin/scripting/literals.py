"""Values that a file can contain exactly: as Python source, or as JSON."""

from __future__ import annotations

import math
from typing import Any

from rlax_plugin.errors import ConfigError

MOST_CHARACTERS = 1 << 20
_DEEPEST = 50


def literal(value: Any) -> str:
    """Returns source that evaluates to an equal value of the same types.

    Sets are written in a fixed order, so that the same value always gives the same text.

    Args:
      value: None, a bool, number, text or bytes, or a list, tuple, set or dict of such values. A
        subclass is not accepted, because a literal would be of its base class.

    Raises:
      ValueError: there is no such literal; the message describes the value or what is in it.
    """
    text = _text(value, 0)
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a value of {len(text):,} characters")
    return text


def _text(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        raise ValueError(f"a value that is nested more than {_DEEPEST} deep")
    kind = type(value)
    if value is None or kind in (bool, str, bytes):
        return repr(value)
    if kind is int:
        if value.bit_length() > 4096:
            raise ValueError("an integer of more than 4096 bits")
        return repr(value)
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"the number {value}")
        return repr(value)
    if kind in (list, tuple, set, frozenset):
        items = [_text(item, depth + 1) for item in value]
        if kind is list:
            return f"[{', '.join(items)}]"
        if kind is tuple:
            return f"({', '.join(items)}{',' * (len(items) == 1)})"
        inside = f"{{{', '.join(sorted(items))}}}" if items else "set()"
        return inside if kind is set else f"frozenset({inside if items else ''})"
    if kind is dict:
        pairs = (f"{_text(k, depth + 1)}: {_text(v, depth + 1)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    raise ValueError(described(value))


def described(value: Any) -> str:
    """Returns words for a value in a message: its name if it is a class, otherwise its class."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    return f"an object of the class {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def check_json(key: str, value: Any, depth: int = 0) -> None:
    """Checks that JSON gives the same value back.

    Args:
      key: the argument that has the value, for the message.

    Raises:
      ConfigError: it would not; the message names the value's place.
    """
    if depth > _DEEPEST:
        raise ConfigError(key, None, f"is nested more than {_DEEPEST} deep")
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int:
        if not -(2**63) <= value < 2**63:
            raise ConfigError(key, value, "must fit into 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise ConfigError(key, value, "must be a finite number, because JSON has no others")
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(key, value, f"is not Unicode text: {error.reason}") from None
    elif kind is list:
        for number, one in enumerate(value):
            check_json(f"{key}[{number}]", one, depth + 1)
    elif kind is dict:
        for name, one in value.items():
            if type(name) is not str:
                raise ConfigError(key, name, "must be a text, as every name of a column is")
            check_json(f"{key}[{name!r}]", one, depth + 1)
    else:
        reason = "must be None, a bool, int, float, str, list or dict, which JSON keeps exactly"
        raise ConfigError(key, described(value), reason)
