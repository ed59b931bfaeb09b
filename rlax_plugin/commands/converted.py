"""Reads a directory that ``rlax convert`` wrote, for a config that trains its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlax_plugin.config.loading import CONVERTED, merged
from rlax_plugin.errors import ConfigError

_PATHS = ("load_parameters_path", "tokenizer_path")


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """The config's keys of a converted model.

    Attributes:
      keys: key -> value, as in a config.
      lines: the same keys as text, each with a comment.
    """

    keys: Mapping[str, Any]
    lines: tuple[str, ...]


def is_directory(model: str) -> bool:
    """True if an answer to "which model" is a directory, not a name."""
    return "/" in model or Path(model).is_dir()


def read(directory: str) -> ConvertedModel:
    """Reads a directory's ``model.yml``.

    Raises:
      ConfigError: the file is missing or not usable, or a path in it no longer exists.
    """
    path = Path(directory) / CONVERTED
    if not path.is_file():
        reason = f"has no {CONVERTED}: it must be a directory that rlax convert has written"
        raise ConfigError("--model", directory, reason)
    keys = merged(path, ())
    for key in ("vocab_size", "base_emb_dim"):
        number = keys.get(key)
        if type(number) is not int or number < 1:
            raise ConfigError(f"{key} in {path}", number, "must be a positive number")
    for key in _PATHS:
        if (named := keys.get(key)) is not None and not Path(str(named)).exists():
            reason = "does not exist; if the directory was moved, correct its path there"
            raise ConfigError(f"{key} in {path}", named, reason)
    lines = path.read_text(encoding="utf-8").splitlines()
    return ConvertedModel(keys, tuple(line for line in lines if not line.startswith("#")))
