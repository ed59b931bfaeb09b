"""The rewards of a call of ``train``, as entries of ``rlax.rewards`` and the files that they name.

A function is written to a file beside the config. If it belongs to a module that has a file, this
file is copied; otherwise its source is collected (``function_source.py``).
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.reward.functions.signatures import FunctionError, check_imports
from rlax_plugin.tools.scripting.function_source import (
    Gatherer,
    NoSourceError,
    check_code,
    plain_function,
)
from rlax_plugin.tools.scripting.literals import check_json, described

Reward = str | Callable[..., Any] | Mapping[str, Any]
"""A reward as ``train`` takes it: a function, a name, or an entry of ``rlax.rewards``."""

_COLLECTED = "rewards.py"
_FUNCTION = "function"


@dataclass(slots=True)
class GivenRewards:
    """Rewards as a config has them.

    Attributes:
      entries: the list ``rlax.rewards``; a function is named by its file beside the config.
      files: name -> content of the files beside the config.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


def given_rewards(given: Reward | Sequence[Reward]) -> GivenRewards:
    """Returns the rewards of a call, after checking them.

    Raises:
      ConfigError: one of them cannot be written; the key is that of the argument.
    """
    if isinstance(given, str | Mapping) or callable(given):
        given = [given]
    if not isinstance(given, list | tuple):
        reason = "must be a list of functions, names of rewards, and entries of rlax.rewards"
        raise ConfigError("rewards", described(given), reason)
    writer = _Writer()
    for number, one in enumerate(given):
        writer.add(f"rewards[{number}]", one)
    return writer.written()


class _Writer:
    def __init__(self) -> None:
        self._found = GivenRewards()
        self._sources: dict[str, str] = {}  # path of a copied file -> its name
        self._collected: list[int] = []  # entries whose function is in ``_COLLECTED``
        self._gatherer = Gatherer()

    def written(self) -> GivenRewards:
        """Returns what was added, with the file of the collected functions."""
        if self._collected:
            name = self._free(_COLLECTED)
            self._found.files[name] = self._gatherer.text().encode()
            for number in self._collected:
                entry = self._found.entries[number]
                entry[_FUNCTION] = f"{name}:{entry[_FUNCTION]}"
        return self._found

    def add(self, key: str, given: Any) -> None:
        options: dict[str, Any] = {}
        if isinstance(given, Mapping):
            options = dict(given)
            check_json(key, {name: one for name, one in options.items() if name != _FUNCTION})
            if "name" in options and _FUNCTION not in options:
                self._found.entries.append(options)
                return
            if _FUNCTION not in options:
                raise ConfigError(key, dict(given), "must have the key name or the key function")
            key, given = f"{key}[{_FUNCTION!r}]", options.pop(_FUNCTION)
            if isinstance(given, str) and ".py:" not in given:  # of a module, or wrong
                self._found.entries.append({_FUNCTION: given, **options})
                return
        elif isinstance(given, str) and ".py:" not in given:
            self._found.entries.append({"name": given})
            return
        try:
            if isinstance(given, str):
                named = self._of_file(given)
            elif (module := _file_module(given)) is not None:
                named = self._of_module(given, module)
            else:
                self._gatherer.add(plain_function(given))
                self._collected.append(len(self._found.entries))
                named = given.__name__
        except NoSourceError as error:
            shown = given if isinstance(given, str) else getattr(given, "__qualname__", None)
            shown = shown or described(given)
            raise ConfigError(key, shown, str(error)) from None
        self._found.entries.append({_FUNCTION: named, **options})

    def _of_file(self, text: str) -> str:
        path, _, name = text.rpartition(":")
        source = _read(Path(path))
        return f"{self._copied(Path(path), source)}:{name}"

    def _of_module(self, function: Any, path: Path) -> str:
        name = function.__name__
        source = _read(path)
        inner = inspect.unwrap(function)
        if isinstance(inner, FunctionType) and inner.__code__.co_filename == str(path):
            check_code(inner, source)
        return f"{self._copied(path, source)}:{name}"

    def _copied(self, path: Path, source: str) -> str:
        where = os.path.realpath(path)
        if where not in self._sources:
            try:
                check_imports(ast.parse(source), where, path.name)
            except FunctionError as error:
                raise NoSourceError(f"is in a file that cannot be copied: {error}") from None
            self._sources[where] = name = self._free(path.name)
            self._found.files[name] = source.encode()
        return self._sources[where]

    def _free(self, name: str) -> str:
        stem, number = name.removesuffix(".py"), 1
        while name in self._found.files:
            number += 1
            name = f"{stem}_{number}.py"
        return name


def _file_module(function: Any) -> Path | None:
    """Returns the file of the module of a function; None if it has none that can be copied.

    Raises:
      NoSourceError: the module's name for the function means something else.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or not path or not path.endswith(".py"):
        return None
    name = getattr(function, "__qualname__", "")
    if isinstance(function, type) or not name or vars(module).get(name) is not function:
        plain_function(function)
        raise NoSourceError(f"is not what {module.__name__}.{name or '?'} means: give that itself")
    return Path(path)


def _read(path: Path) -> str:
    try:
        source = path.read_text(encoding="utf-8")
        compile(source, str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise NoSourceError(f"needs {path}, which cannot be read: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise NoSourceError(f"needs {path}, which is not Python source: {error}") from None
    return source
