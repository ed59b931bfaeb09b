"""Relative paths of data in a config: relative to the file that names them, as files of functions.

They are rewritten where the file is read, so that everything else, and a run's own copy of its
config, has paths that are relative to the working directory. A path that leads to nothing from the
config's directory, and to something from the working directory, is read from there, with a warning.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_PATH, _SPLITS, _LIBRARY, _SOURCES = "path", "splits", "dataset", "sources"
Warn = Callable[[str, str], object]
"""Called with a config key and a sentence."""


def located(content: Mapping[str, Any], directory: Path, warn: Warn) -> dict[str, Any]:
    """Returns a file's content with paths of data that are relative to the working directory.

    Args:
      directory: directory of the file.
      warn: called for each path that is relative to the working directory already.
    """

    def place(text: str, key: str) -> str:
        if not _is_relative(text):
            return text
        if _leads_somewhere(beside := os.path.join(directory, text)):
            return os.path.relpath(beside)
        if _leads_somewhere(text):
            warn(
                key,
                f"names {text}, which is not in {directory}, the directory of the config, and is "
                "read from the working directory: write it relative to the config",
            )
        return text

    if os.path.realpath(directory) == os.path.realpath(os.curdir):
        return dict(content)
    return _with_sources(content, lambda source, key: _placed(source, key, place))


def relative_to(source: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """Returns the options of a prompt source as a config in another directory names its data."""

    def place(text: str, key: str) -> str:
        there = _is_relative(text) and _leads_somewhere(text)
        return os.path.relpath(text, directory) if there else text

    return _placed(source, "", place)


def _with_sources(
    content: Mapping[str, Any], change: Callable[[Mapping[str, Any], str], Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns a config's content in which every prompt source is changed."""

    def within(value: Any, key: str) -> Any:
        source = value.get("prompt_source") if isinstance(value, Mapping) else None
        if not isinstance(source, Mapping):
            return value
        return {**value, "prompt_source": change(source, f"{key}.prompt_source")}

    section = within(content.get("rlax"), "rlax")
    if not isinstance(section, Mapping):
        return dict(content)
    evaluation = section.get("evaluation")
    if isinstance(evaluation, Mapping) and isinstance(sets := evaluation.get("sets"), Mapping):
        key = "rlax.evaluation.sets"
        sets = {name: within(one, f"{key}.{name}") for name, one in sets.items()}
        section = {**section, "evaluation": {**evaluation, "sets": sets}}
    return {**content, "rlax": section}


def _placed(
    source: Mapping[str, Any], key: str, place: Callable[[str, str], str]
) -> dict[str, Any]:
    """Returns the options of a prompt source, also of a mixture of several, with other paths."""

    def each(value: Any, of: str) -> Any:
        if isinstance(value, list | tuple):
            return [each(one, of) for one in value]
        return place(value, of) if isinstance(value, str) else value

    found = dict(source)
    if _PATH in found:
        found[_PATH] = each(found[_PATH], f"{key}.{_PATH}")
    if isinstance(named := found.get(_LIBRARY), str):
        # A directory, or the name of a data set; what its splits are called are no paths.
        found[_LIBRARY] = place(named, f"{key}.{_LIBRARY}")
    elif isinstance(splits := found.get(_SPLITS), Mapping):
        found[_SPLITS] = {
            name: each(value, f"{key}.{_SPLITS}.{name}") for name, value in splits.items()
        }
    if isinstance(sources := found.get(_SOURCES), Mapping):
        found[_SOURCES] = {
            name: _placed(one, f"{key}.{_SOURCES}.{name}", place)
            if isinstance(one, Mapping)
            else one
            for name, one in sources.items()
        }
    return found


def _is_relative(path: str) -> bool:
    return bool(path) and "://" not in path and not path.startswith("~") and not os.path.isabs(path)


def _leads_somewhere(pattern: str) -> bool:
    return os.path.exists(pattern) or bool(glob.glob(pattern, recursive=True))
