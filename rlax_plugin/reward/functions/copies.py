"""The files of functions of a run: part of its identity, and kept in its directory.

A run executes its copies, also when it is resumed or evaluated. After its start it does not need
the files of the user's.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.files.run_files import RunFiles, holds_results
from rlax_plugin.config.functions import FunctionName, function_files, parse_function
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.reward.functions.checking import read_file
from rlax_plugin.reward.functions.signatures import FunctionError

FOLDER = "functions"
_RECORD = f"{FOLDER}/functions.json"


def read_functions(
    config: ResolvedConfig, files: RunFiles, state_dir: Path
) -> tuple[ResolvedConfig, dict[str, bytes]]:
    """Reads the files of functions for a run that begins or goes on.

    A file that is gone when a run is resumed is replaced by the run's copy.

    Args:
      files: of the run.
      state_dir: local directory of the run.

    Returns:
      The config with the SHA-256 of the files, and their contents.

    Raises:
      ConfigError: a file cannot be read, or has changed since the run began.
    """
    if not config.functions:
        return config, {}
    # What a run without results has recorded binds nobody: it may begin again with other files.
    kept: dict[str, Any] = (files.get_json(_RECORD) if holds_results(files) else None) or {}
    paths, contents = dict(config.functions), {}
    # A copy is preferred to a file that only the working directory has, see ``function_files``.
    warnings = dict(config.warnings)
    for key, choice, name in _named(config):
        if name.file in contents:
            continue
        path = Path(paths[name.file])
        is_elsewhere = f"function {name}" in warnings
        if name.file in kept and (is_elsewhere or not path.exists()):
            warnings.pop(f"function {name}", None)
            contents[name.file] = _copy(files, name, kept[name.file])
            paths[name.file] = _local(files, state_dir, name, contents[name.file])
            continue
        try:
            contents[name.file] = content = read_file(path)
        except FunctionError as error:
            reason = str(error)
            if not path.exists() and not os.path.isabs(name.file):
                reason += f". Nor is it in the working directory, {os.getcwd()}"
            raise ConfigError(key, choice, reason) from None
        # A worker or a host has no record; its config has the digest.
        before = kept.get(name.file) or config.section.functions.get(name.file)
        if before not in (None, _digest(content)):
            raise ConfigError(key, choice, _changed(files, name, content, kept))
    digests = {file: _digest(content) for file, content in contents.items()}
    whole = config.with_content({"rlax": {"functions": digests}})
    return replace(whole, functions=paths, warnings=tuple(warnings.items())), contents


def keep_functions(
    config: ResolvedConfig, contents: Mapping[str, bytes], files: RunFiles, state_dir: Path
) -> ResolvedConfig:
    """Writes copies into the run's directory; returns the config that executes them.

    Raises:
      RlaxError: they cannot be written.
    """
    if not contents:
        return config
    names = {name.file: name for _, _, name in _named(config)}
    paths = {}
    for file, content in contents.items():
        files.put(f"{FOLDER}/{names[file].copy}", content)
        paths[file] = _local(files, state_dir, names[file], content)
    files.put_json(_RECORD, {file: _digest(content) for file, content in contents.items()})
    return replace(config, functions=paths)


def kept_functions(config: ResolvedConfig, files: RunFiles, directory: Path) -> ResolvedConfig:
    """Returns a run's config with its copies, for commands that evaluate the run.

    A file that the run does not have was named by an argument, relative to the current directory.

    Args:
      directory: local directory for copies of a run on an object store.

    Raises:
      ConfigError: a copy is gone or damaged.
    """
    kept: dict[str, Any] = (files.get_json(_RECORD) if config.section.functions else None) or {}
    paths = function_files(config.section.functions_named, Path())
    for _, _, name in _named(config):
        if name.file in kept:
            content = _copy(files, name, kept[name.file])
            paths[name.file] = _local(files, directory, name, content)
    return replace(config, functions=paths)


def _named(config: ResolvedConfig) -> list[tuple[str, str, FunctionName]]:
    """Returns (key, value, name) of every key ``function`` that names a file."""
    names = []
    for key, choices in config.section.function_lists.items():
        for number, choice in enumerate(choices):
            name = parse_function(choice.function) if choice.function else None
            if name is not None and name.file:
                names.append((f"{key}.{number}.function", choice.function, name))
    return names


def _copy(files: RunFiles, name: FunctionName, digest: str) -> bytes:
    place = f"{FOLDER}/{name.copy}"
    try:
        content = files.get(place)
    except FileNotFoundError:
        reason = f"the run's copy of {name.file} is gone"
        raise ConfigError("RUN", files.location(place), reason) from None
    if _digest(content) != digest:
        reason = f"the run's copy of {name.file} was changed: its SHA-256 must begin {digest[:12]}"
        raise ConfigError("RUN", files.location(place), reason)
    return content


def _local(files: RunFiles, directory: Path, name: FunctionName, content: bytes) -> str:
    """Returns the path of a copy on this machine, which is written if the run is not on it."""
    if files.is_local:
        return os.path.abspath(files.location(f"{FOLDER}/{name.copy}"))
    path = directory.absolute() / FOLDER / name.copy
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return str(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _changed(files: RunFiles, name: FunctionName, content: bytes, kept: Mapping[str, Any]) -> str:
    if name.file not in kept:
        return f"{name.file} has another SHA-256 than rlax.functions says, {_digest(content)}"
    copy = files.location(f"{FOLDER}/{name.copy}")
    then, now = files.get(f"{FOLDER}/{name.copy}").splitlines(), content.splitlines()
    both = min(len(then), len(now))
    line = next((n for n in range(both) if then[n] != now[n]), both) + 1
    return (
        f"{name.file} was changed since this run began (line {line} is the first that differs from "
        f"{copy}): bring it back, or begin another run with another run_name"
    )
