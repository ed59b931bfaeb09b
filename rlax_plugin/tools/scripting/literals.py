"""Values that a file can contain exactly: as Python source, or as JSON."""

from __future__ import annotations

import json
import marshal
import pprint
import sys
from typing import Any

from rlax_plugin.base.errors import ConfigError

MOST_CHARACTERS = 1 << 20
_NAMES = {"__builtins__": {}, "set": set, "frozenset": frozenset}


class _Writer(pprint.PrettyPrinter):
    """Writes values in one line, and sets in a fixed order."""

    def format(
        self, object: Any, context: dict[int, int], maxlevels: int, level: int
    ) -> tuple[str, bool, bool]:
        if not object or type(object) not in (set, frozenset):
            return super().format(object, context, maxlevels, level)
        items = sorted(self.format(item, context, maxlevels, level + 1)[0] for item in object)
        text = f"{{{', '.join(items)}}}"
        return (text if type(object) is set else f"frozenset({text})"), True, False


def literal(value: Any) -> str:
    """Returns source that evaluates to an equal value of the same types.

    Sets are written in a fixed order, so that the same value always gives the same text.

    Args:
      value: None, a bool, number, text or bytes, or a list, tuple, set or dict of such values. A
        subclass is not accepted, because a literal would be of its base class.

    Raises:
      ValueError: there is no such literal; the message describes the value.
    """
    try:
        marshal.dumps(value)  # which refuses subclasses
        text = _Writer(width=sys.maxsize, sort_dicts=False).pformat(value)
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"a value of {len(text):,} characters")
        same = eval(text, dict(_NAMES)) == value
    except (ValueError, SyntaxError, NameError, RecursionError, MemoryError) as error:
        raise ValueError(f"{described(value)} ({error})") from None
    if not same:
        raise ValueError(described(value))
    return text


def described(value: Any) -> str:
    """Returns words for a value in a message: its name if it is a class, otherwise its class."""
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    return f"an object of the class {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")


def check_json(key: str, value: Any) -> None:
    """Checks that JSON gives the same value back.

    Args:
      key: the argument that has the value, for the message.

    Raises:
      ConfigError: it would not.
    """
    why = ""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if repr(json.loads(text)) == repr(value):  # with the same types
            return
    except (TypeError, ValueError, RecursionError) as error:
        why = f": {error}"
    reason = "must be None, bools, finite numbers, texts, and lists and dicts of these by texts, "
    raise ConfigError(key, described(value), f"{reason}which JSON keeps exactly{why}")
