"""Checks what a function returned: numbers are taken exactly, and nothing is converted by guess."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Score

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_SHOWN = 80  # characters of a value


class ReturnedError(ValueError):
    """A function returned something that is no value of its form; names function, file and line."""


def number(value: Any, where: str, at: str = "") -> float | Score:
    """Returns the value of one sample.

    Args:
      where: function, file and line.
      at: place of the value in a list that it returned.

    Raises:
      ReturnedError: it is neither a finite number, true or false, nor a ``Score``.
    """
    if isinstance(value, Score):
        return value
    if not isinstance(value, _NUMBERS):
        reason = "must return a number, such as 1.0, or True or False"
        if at:
            reason = "must return a list of numbers, or of None for samples without a score"
        raise ReturnedError(f"{where} returned {_shown(value)}{at}: it {reason}")
    try:
        exact = float(value)
    except OverflowError:
        raise ReturnedError(f"{where} returned a whole number that is too large{at}") from None
    if not math.isfinite(exact):
        raise ReturnedError(f"{where} returned {exact}{at}: it must return a finite number")
    return exact


def numbers(values: Any, count: int, where: str) -> list[float | Score | None]:
    """Returns the values of a group.

    Args:
      count: number of its samples.

    Raises:
      ReturnedError: it is no list of this length, or an entry is neither a number nor None.
    """
    right = f"it must return a list of {count} numbers, one for each completion"
    if isinstance(values, np.ndarray):
        if values.shape != (count,):
            shape = f"an array of shape {list(values.shape)}"
            raise ReturnedError(f"{where} returned {shape}: {right}")
        values = list(values)
    if not isinstance(values, list | tuple):
        hint = "; call .tolist()" if hasattr(values, "tolist") else ""
        raise ReturnedError(f"{where} returned {_shown(values)}: {right}{hint}")
    if len(values) != count:
        raise ReturnedError(f"{where} returned {len(values)} values: {right}")
    return [
        None if value is None else number(value, where, f" at place {index}")
        for index, value in enumerate(values)
    ]


def verdict(value: Any, where: str, name: str) -> str | None:
    """Returns the reason for which a filter rejects a group; None if it accepts it.

    Args:
      name: the reason if it returned False.

    Raises:
      ReturnedError: it is neither True, False, None nor a text.
    """
    if value is None or value is True or (isinstance(value, np.bool_) and value):
        return None
    if value is False or isinstance(value, np.bool_):
        return name
    if isinstance(value, str) and value.strip():
        return value
    raise ReturnedError(
        f"{where} returned {_shown(value)}: it must return True or None to accept the group, and "
        "False or a text, the reason, to reject it"
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  a ``__repr__`` of the user's may raise anything
        return f"a {type(value).__name__}"
    if value is None:
        return "None"
    return f"{one_line(text, _SHOWN)} ({type(value).__name__})"
