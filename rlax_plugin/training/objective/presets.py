"""Presets: named algorithms, written in Python or in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from rlax_plugin.base.errors import PluginError, RlaxError
from rlax_plugin.config import SLOTS, Algorithm, NoOptions
from rlax_plugin.ports.protocols import Extension


class Preset(Algorithm):
    """A named algorithm and its description.

    Attributes:
      title: full name.
      paper: address of the paper.
      formula: the objective, to be maximised, in the notation of docs/objectives.md.
      conventions: conventions that the formula does not show, one sentence each.
      peers: library -> how it differs.
      version: of the library whose defaults it has; empty for a paper's algorithm.
      source: address of these defaults.
      covers: subject -> the library's value, and the key of a run's config where the objective
        cannot contain it.
      lacks: properties of the library that the preset cannot have, one sentence each.
    """

    title: str = ""
    paper: str = ""
    formula: str = ""
    conventions: tuple[str, ...] = ()
    peers: dict[str, str] = Field(default_factory=dict)
    version: str = ""
    source: str = ""
    covers: dict[str, str] = Field(default_factory=dict)
    lacks: tuple[str, ...] = ()


def presets_from_yaml(path: str | Path) -> dict[str, Extension]:
    """Reads the result of a plug-in's ``rlax_register_objective`` from a file.

    Args:
      path: path of a YAML mapping, preset name -> fields of ``Preset``. Slots are written as in a
        config: ``grad_1: {name: clipped_ratio, high: 0.28}``.

    Raises:
      PluginError: the file is no such mapping, or a field is unknown or wrong.
    """
    presets = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    if not isinstance(presets, dict):
        raise PluginError(f"{path}: expected {{preset: fields}}, got {presets!r}")
    return {name: _extension(f"{path}: {name}", fields) for name, fields in presets.items()}


def _extension(where: str, fields: Any) -> Extension:
    try:
        preset = Preset.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise PluginError(f"{where}: {key}: {problem['msg']}") from None
    except RlaxError as error:
        raise PluginError(f"{where}: {error}") from None
    for slot in SLOTS:
        choice = getattr(preset, slot)
        if choice is not None and not choice.name:
            raise PluginError(f"{where}: {slot}.name: must be given")
    return Extension(NoOptions, lambda config, context: preset)
