"""``rlax check-plugin FILE.py:NAME``: says how a function would be called, and as what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config import Deadlines
from rlax_plugin.config.functions import function_files, parse_function
from rlax_plugin.reward.functions.checking import checked_signature
from rlax_plugin.reward.functions.signatures import FunctionError, Signature
from rlax_plugin.testing.checking import Checked

_KINDS = ("reward", "filter")


def is_function(name: str) -> bool:
    """True if the name of a plug-in is that of a function, such as ``rewards.py:correct``."""
    return ".py:" in name


def check_function(function: str) -> tuple[Checked, ...]:
    """Checks the signature of a function; calls it never.

    Args:
      function: ``FILE.py:NAME``, relative to the current directory.

    Returns:
      The kinds of parts that it can be.

    Raises:
      ConfigError: it can be neither a reward nor a filter.
    """
    try:
        parse_function(function)
    except ValueError as error:
        raise ConfigError("function", function, str(error)) from None
    files = function_files([function], Path())
    checked, failures = [], []
    for kind in _KINDS:
        try:
            found = checked_signature(function, kind, files, Deadlines().startup_s)
        except FunctionError as error:
            failures.append(str(error))
        else:
            checked.append(Checked(function, kind, found.name, tuple(_rules(found, kind))))
    if not checked:
        raise ConfigError("function", function, failures[0])
    return tuple(checked)


def _rules(found: Signature, kind: str) -> Iterator[str]:
    once = "group" if found.form == "group" else "sample"
    yield f"{found.where} is called {'and awaited ' * found.waits}once for each {once}"
    named = ", ".join(found.required) or "none"
    yield f"parameters: {named}{''.join(f', {one} (has a default)' for one in found.optional)}"
    if columns := found.columns:
        yield f"columns that the data must have: {', '.join(columns)}"
    if found.rest:
        yield "it gets all other values and columns as well"
    if kind == "reward":
        yield "it was not called: rlax score tries it on completions"
