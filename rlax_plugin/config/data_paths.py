"""Relative paths in a config, of data and of an environment: relative to the file that names them.

A file's paths are marked with its directory when it is read, and become absolute when all files and
arguments are merged, so that nothing depends on the working directory later. Arguments are relative
to the working directory. A path of a file that leads to nothing from the file's directory, and to
something from the working directory, is read from there, with a warning.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_SOURCES = ("prompt_source", "logged_samples")
# Prompt sources by another name.
_DEMONSTRATIONS = (".trainer.warm_start.data", ".trainer.demonstrations.data")
Warn = Callable[[str, str], object]
"""Called with a config key and a sentence."""
_Change = Callable[[str, str, bool], str]
"""Called with a text, its config key, and True if it is a path on this machine."""


class _OfFile(str):
    """A text of a file in this directory."""

    directory: Path


def marked(content: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Returns a file's content in which paths of data know the directory of the file."""

    def mark(text: str, key: str, is_path: bool) -> str:
        # Whether it is a path may depend on the other files.
        of_file = _OfFile(text)
        of_file.directory = directory
        return of_file

    return _changed(content, mark)


def located(content: Mapping[str, Any], warn: Warn = lambda key, text: None) -> dict[str, Any]:
    """Returns merged content in which the paths of data that exist are absolute.

    Args:
      content: of ``marked`` files and of arguments.
      warn: called for each path of a file that leads only from the working directory to something.
    """

    def place(text: str, key: str, is_path: bool) -> str:
        directory, text = text.directory if isinstance(text, _OfFile) else Path(), str(text)
        if not is_path or os.path.isabs(text):
            return text
        if beside := _absolute(text, directory):
            return beside
        if here := _absolute(text, Path()):
            warn(
                key,
                f"names {text}, which is not in {directory}, the directory of the config, and is "
                "read from the working directory: write it relative to the config",
            )
        return here or text

    return _changed(content, place)


def relative_to(content: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Returns content as a config in another directory names the data that exist."""

    def move(text: str, key: str, is_path: bool) -> str:
        if not is_path or os.path.isabs(text) or not (absolute := _absolute(text, Path())):
            return text
        if ".splits." in key and os.path.isdir(absolute):
            return text  # the name of a split, if another file has the data set
        base = os.path.realpath(directory)
        moved = os.path.relpath(absolute, base if os.path.exists(absolute) else glob.escape(base))
        # Without a dot it would be the name of a data set on the hub.
        is_name = key.endswith(".dataset") and not names_directory(moved)
        return f"./{moved}" if is_name else moved

    return _changed(content, move)


def without_directories(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns content that has only the last component of each path."""
    return _changed(content, lambda text, _, is_path: Path(text).name if is_path else text)


def names_directory(dataset: str) -> bool:
    """True if ``dataset`` is a directory, and not the name of a data set on the hub."""
    return dataset.startswith((".", "/", "~"))


def _changed(content: Mapping[str, Any], change: _Change, key: str = "") -> dict[str, Any]:
    """Returns a config's content in which the texts that may be paths of data are changed."""
    found = dict(content)
    for name, value in content.items():
        if isinstance(value, Mapping):
            is_source = name in _SOURCES or f".{key}{name}".endswith(_DEMONSTRATIONS)
            of = _of_source if is_source else _of_files if name == "environment" else _changed
            found[name] = of(value, change, f"{key}{name}.")
    return found


def _of_files(options: Mapping[str, Any], change: _Change, key: str) -> dict[str, Any]:
    """Returns the options of an environment, which may list files and directories."""
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, Mapping):
            found[name] = _of_files(value, change, f"{key}{name}.")
        elif name in ("files", "see") and isinstance(value, list | tuple):
            found[name] = [
                change(one, f"{key}{name}", bool(one)) if isinstance(one, str) else one
                for one in value
            ]
    return found


def _of_source(source: Mapping[str, Any], change: _Change, key: str) -> dict[str, Any]:
    """Returns the options of a prompt source, also of a mixture of several."""
    is_named = "dataset" in source  # then its splits are names, too

    def each(value: Any, of: str, is_path: bool) -> Any:
        if isinstance(value, Mapping):
            return {name: each(item, f"{of}.{name}", is_path) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [each(item, of, is_path) for item in value]
        if not isinstance(value, str):
            return value
        is_local = bool(value) and "://" not in value and "\0" not in value
        is_path = is_path or (of.endswith(".dataset") and names_directory(value))
        return change(value, of, is_path and is_local)

    found = dict(source)
    program = source.get("python")
    is_program = isinstance(program, str) and "/" in program
    names = (("path", True), ("dataset", False), ("splits", not is_named), ("python", is_program))
    for name, is_path in names:
        if name in source:
            found[name] = each(source[name], f"{key}{name}", is_path)
    if isinstance(mixed := source.get("sources"), Mapping):
        found["sources"] = {
            name: _of_source(one, change, f"{key}sources.{name}.")
            if isinstance(one, Mapping)
            else one
            for name, one in mixed.items()
        }
    return found


def _absolute(text: str, directory: Path) -> str:
    """Returns the absolute path or pattern of what exists; empty if nothing does.

    The last component stays as it is: in the Hugging Face hub's cache it is a link, and the name of
    the file that it leads to does not tell its kind.
    """
    if os.path.exists(path := directory / text):
        parent, name = os.path.split(path)
        return (
            os.path.realpath(path) if name in ("", "..") else f"{os.path.realpath(parent)}/{name}"
        )
    fixed = os.path.dirname(re.split(r"[*?[]", text)[0])
    rest = text[len(fixed) :].lstrip("/")
    pattern = os.path.join(glob.escape(os.path.realpath(directory / fixed)), rest)
    is_found = glob.has_magic(text) and next(glob.iglob(pattern, recursive=True), None)
    return pattern if is_found else ""
