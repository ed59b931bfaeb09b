"""Converts a model of another library to a directory that a run of MaxText starts from.

0/items/       MaxText's checkpoint of parameters
huggingface/   config.json, the tokenizer's files, generation_config.json
model.yml      MaxText's keys of the model
converted.json record of the source and the conversion
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from maxtext_overrides.models import finite, gguf_tokenizer, huggingface_config, side_files
from maxtext_overrides.models.architecture import Architecture
from maxtext_overrides.models.gguf_file import GgufFile
from maxtext_overrides.models.maxtext_keys import maxtext_keys
from maxtext_overrides.models.rules import Variable, variables
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from maxtext_overrides.models.tensors import DTYPES, TensorSource, check_tensors
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.tokens.tokenizer import Tokenizer
from rlax_plugin.config.loading import CONVERTED
from rlax_plugin.config.yaml_values import dumped

SIDE_FILES, RECORD = "huggingface", "converted.json"
_HEADING = """# Written by `rlax convert`: MaxText's keys of a model, to be part of a run's config.
# `rlax init --model DIR` writes a whole config. The model: """


@dataclass(frozen=True, slots=True, kw_only=True)
class Convertible:
    """A model that was read and checked, and is ready to be written.

    Attributes:
      architecture: the model's architecture.
      source: source of the tensors.
      scanned: ``scan_layers``.
      dtype: dtype of the written weights, one of ``DTYPES``; variables that are rescaled on the way
        are always float32.
      has_tokenizer: True if the files beside the weights include a tokenizer.
      write_beside: writes config.json and the tokenizer into a directory.
    """

    architecture: Architecture
    source: TensorSource
    scanned: bool
    dtype: str
    has_tokenizer: bool
    write_beside: Callable[[Path], None]

    @property
    def keys(self) -> dict[str, Any]:
        """MaxText's keys of the model."""
        return maxtext_keys(self.architecture) | {"scan_layers": self.scanned}

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The MaxText variables that the tensors become."""
        return variables(self.architecture, self.scanned)

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(math.prod(variable.shape) for variable in self.variables)

    @property
    def nbytes(self) -> int:
        """The size of the checkpoint in bytes."""
        return sum(math.prod(v.shape) * self._dtype(v).itemsize for v in self.variables)

    def _dtype(self, variable: Variable) -> np.dtype:
        return DTYPES["float32" if variable.is_rescaled else self.dtype]

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        """Writes the converted model into a directory.

        Args:
          directory: exists and is empty.
          home: its final path; the paths in ``model.yml`` begin with it.
          progress: called with (bytes written, total bytes).

        Raises:
          ConfigError: a tensor cannot be read, or a weight is not finite.
          OSError: the disk failed.
        """
        from maxtext_overrides.models import checkpoint

        beside = directory / SIDE_FILES
        beside.mkdir()
        self.write_beside(beside)
        keys, family = self.keys, self.architecture.family
        if self.has_tokenizer:
            keys |= {"tokenizer_type": "huggingface", "tokenizer_path": str(home / SIDE_FILES)}
        keys["load_parameters_path"] = str(home / checkpoint.ITEMS)
        text = f"{_HEADING}{family}.\nbase_config: base.yml\n{dumped(keys)}"
        (directory / CONVERTED).write_text(text, encoding="utf-8")
        record = {
            "source": os.path.abspath(self.source.where),
            "architecture": family,
            "dtype": self.dtype,
            "tensors": len(self.source.shapes),
            "variables": len(self.variables),
            "bytes": self.nbytes,
        }
        (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        pending = [(variable, self._dtype(variable)) for variable in self.variables]
        checkpoint.write(
            directory,
            pending,
            lambda variable, dtype: finite.made(variable, self.source, dtype),
            self.scanned,
            progress,
        )


def home_of(checkpoint: str) -> Path | None:
    """Returns the directory whose checkpoint this path names; None if it is not of a conversion."""
    if not checkpoint or "://" in checkpoint:
        return None
    given = Path(checkpoint)
    home = given.parent.parent if given.name == "items" else given.parent
    return home if (home / RECORD).is_file() else None


def described(key: str, checkpoint: str) -> Architecture | None:
    """Returns the architecture in the config.json of a conversion; None if there is no such file.

    Args:
      key: config key that names the checkpoint.
      checkpoint: its path.

    Raises:
      ConfigError: the file is damaged.
    """
    home = home_of(checkpoint)
    if home is None or not (file := home / SIDE_FILES / side_files.CONFIG).is_file():
        return None
    try:
        return huggingface_config.architecture(huggingface_config.read(file), file)
    except ConfigError as error:
        raise ConfigError(key, checkpoint, str(error).removeprefix("SOURCE = ")) from None


def source_of(checkpoint: str) -> str | None:
    """Returns the Hugging Face directory that became a checkpoint; None if it is not there."""
    if (home := home_of(checkpoint)) is None:
        return None
    found = str(huggingface_config.read(home / RECORD).get("source"))
    return found if os.path.isabs(found) and os.path.isdir(found) else None


def examine(path: Path, dtype: str, scanned: bool) -> Convertible:
    """Reads and checks a model; reads the values of its tensors only when it is written.

    Args:
      path: a Hugging Face directory, or a GGUF file.
      dtype: one of ``DTYPES``.
      scanned: ``scan_layers``.

    Raises:
      ConfigError: the path is neither of them, or the model is damaged, not supported or
        inconsistent.
    """
    if path.is_dir():
        return _directory(path, dtype, scanned)
    if path.is_file():
        return _file(path, dtype, scanned)
    reason = "must be a directory with config.json and safetensors, or a GGUF file"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
        reason += (
            f"; a model of Hugging Face comes with: hf download {path} --local-dir {path.name}"
        )
    raise ConfigError("SOURCE", str(path), reason)


def _directory(path: Path, dtype: str, scanned: bool) -> Convertible:
    config = path / side_files.CONFIG
    if not config.is_file():
        raise ConfigError("SOURCE", str(path), f"has no {side_files.CONFIG}")
    side_files.check(path, "SOURCE")
    content = huggingface_config.read(config)
    architecture = huggingface_config.architecture(content, config)
    source = SafetensorsDirectory(path)
    check_tensors(source, architecture)
    has_tokenizer = side_files.has_tokenizer(path)
    if has_tokenizer:
        _check_tokenizer(Tokenizer.load(path, "SOURCE").size, architecture.vocab_size, path)

    def write_beside(directory: Path) -> None:
        for name in (side_files.CONFIG, side_files.GENERATION):
            side_files.copy(path / name, directory / name)
        side_files.copy_tokenizer(path, directory)

    return Convertible(
        architecture=architecture,
        source=source,
        scanned=scanned,
        dtype=dtype,
        has_tokenizer=has_tokenizer,
        write_beside=write_beside,
    )


def _file(path: Path, dtype: str, scanned: bool) -> Convertible:
    source = GgufFile(path)
    architecture = source.architecture()
    check_tensors(source, architecture)
    tokenizer = gguf_tokenizer.build(source)
    _check_tokenizer(1 + max(tokenizer.get_vocab().values()), architecture.vocab_size, path)

    def write_beside(directory: Path) -> None:
        content = huggingface_config.content_of(architecture) | gguf_tokenizer.special_ids(source)
        text = json.dumps(content, indent=2) + "\n"
        (directory / side_files.CONFIG).write_text(text, encoding="utf-8")
        gguf_tokenizer.write(source, tokenizer, directory)

    return Convertible(
        architecture=architecture,
        source=source,
        scanned=scanned,
        dtype=dtype,
        has_tokenizer=True,
        write_beside=write_beside,
    )


def _check_tokenizer(size: int, vocab_size: int, path: Path) -> None:
    """Raises ConfigError if the tokenizer has ids outside the model's vocabulary."""
    if size > vocab_size:
        reason = (
            f"the tokenizer has ids up to {size - 1}, but the model has only {vocab_size} tokens"
        )
        raise ConfigError("SOURCE", str(path), reason)
