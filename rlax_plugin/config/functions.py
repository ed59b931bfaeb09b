"""Names of functions in a config: ``rewards.py:correct`` and ``package.module:correct``.

``parse_function`` is the only reader of such a name. It looks at no file; ``FunctionName.path``
says where the file lies, relative to the directory of the config.
"""

from __future__ import annotations

import hashlib
import keyword
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlax_plugin.config.data_paths import Warn

_EXAMPLE = "write FILE.py:NAME, such as rewards.py:correct, or package.module:NAME"


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The parsed value of a key ``function``.

    Attributes:
      file: the file, as the config names it; empty for a function of a module.
      module: the module; empty for a function of a file.
      name: name of the function.
    """

    file: str
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"

    @property
    def copy(self) -> str:
        """The file's path inside the folder of a run's copies; two files never share one."""
        path = PurePosixPath(self.file)
        if path.name == self.file:
            return self.file
        folder = hashlib.sha256(self.file.encode()).hexdigest()[:8]
        return f"{folder}/{path.name}"

    def path(self, directory: Path) -> Path:
        """Returns the file's path; a relative one is relative to ``directory``."""
        return directory.absolute() / self.file


def parse_function(text: object) -> FunctionName:
    """Parses the value of a key ``function``.

    Raises:
      ValueError: it is neither ``FILE.py:NAME`` nor ``package.module:NAME``; says what is right.
    """
    if not isinstance(text, str) or not text.isprintable():
        raise ValueError(f"must be text: {_EXAMPLE}")
    place, colon, name = text.rpartition(":")
    if not colon or not place:
        raise ValueError(f"must name a file and a function: {_EXAMPLE}")
    if "(" in name or "lambda" in name:
        raise ValueError(f"must name a function that a file defines with def: {_EXAMPLE}")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} cannot be the name of a function: {_EXAMPLE}")
    if "://" in place:
        raise ValueError(f"must be a file on this machine: {_EXAMPLE}")
    if place.startswith("~"):
        raise ValueError("must be a path: ~ is not expanded here")
    if place.endswith(".py"):
        if PurePosixPath(place).name == ".py":
            raise ValueError(f"must be a file with a name: {_EXAMPLE}")
        return FunctionName(place, "", name)
    if "/" in place or place.startswith("."):
        raise ValueError(f"must be a file that ends in .py: {_EXAMPLE}")
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in place.split(".")):
        raise ValueError(f"{place!r} is neither a file that ends in .py nor a module: {_EXAMPLE}")
    return FunctionName("", place, name)


def function_files(
    functions: Iterable[str], directory: Path, warn: Warn = lambda key, text: None
) -> dict[str, str]:
    """Returns file as the config names it -> absolute path, for functions that files define.

    A run's directory has them in its folder of copies.

    Args:
      warn: called for each file that is read from the working directory, see ``data_paths``.
    """
    found = {}
    for name in map(parse_function, functions):
        if not name.file:
            continue
        path, copy = name.path(directory), directory.absolute() / "functions" / name.copy
        elsewhere = name.path(Path())
        if not path.exists() and copy.is_file():
            path = copy
        elif not path.exists() and elsewhere.is_file():
            warn(
                f"function {name}",
                f"is not in {directory}, the directory of the config, and is read from the "
                "working directory: write it relative to the config",
            )
            path = elsewhere
        found[name.file] = str(path)
    return found


def rebased(content: Mapping[str, Any], old: Path, new: Path) -> dict[str, Any]:
    """Returns a config's content whose files of functions are relative to another directory.

    Args:
      old: directory of the file that was read.
      new: directory of the file that is based on it.
    """

    def entry(value: Any) -> Any:
        text = value.get("function") if isinstance(value, Mapping) else None
        place = text.rpartition(":")[0] if isinstance(text, str) else ""
        if not place.endswith(".py") or os.path.isabs(place):
            return value
        moved = os.path.relpath(os.path.join(old, place), new)
        return {**value, "function": f"{moved}:{str(text).rpartition(':')[2]}"}

    def below(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: below(item) for name, item in value.items()}
        return [entry(item) for item in value] if isinstance(value, list) else value

    found = dict(content)
    if isinstance(section := found.get("rlax"), Mapping) and os.path.realpath(
        old
    ) != os.path.realpath(new):
        keys = ("rewards", "curation", "environment", "environments", "evaluation")
        found["rlax"] = {k: below(v) if k in keys else v for k, v in section.items()}
    return found


def function_text(text: str) -> str:
    """Returns the value of a key ``function``, which may be empty; raises as ``parse_function``."""
    if text:
        parse_function(text)
    return text


def named_function(value: Mapping[str, object]) -> dict[str, object]:
    """Returns a choice with ``function`` with the name that metrics and messages use.

    It is the function's name, or the choice's ``label``.

    Raises:
      ValueError: it has a ``name`` as well, or a wrong label.
    """
    if "name" in value:
        reason = "is chosen by a name and by a function: leave one of name and function out"
        raise ValueError(f"{reason}. To give a function another name in metrics, use label")
    if not value["function"]:
        raise ValueError(f"names no function: {_EXAMPLE}")
    label = value.get("label", str(value["function"]).rpartition(":")[2])
    if "label" in value:
        check_label(label)
    return {"name": label, **value}


def check_label(label: object) -> None:
    """Checks the label of a choice.

    Raises:
      ValueError: it cannot be a part of the names of metrics.
    """
    if not (isinstance(label, str) and label.isidentifier()):
        reason = "must be letters, digits and _, as it is part of the names of metrics"
        raise ValueError(f"has the label {label!r}, which {reason}")
