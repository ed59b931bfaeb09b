"""From a model of another library to a directory that a run of MaxText starts from.

0/items/       MaxText's checkpoint of parameters
huggingface/   config.json, the tokenizer's files, generation_config.json
model.yml      MaxText's keys of the model
converted.json what it was made from
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maxtext_overrides.models import gguf_tokenizer, huggingface_config, side_files
from maxtext_overrides.models.gguf_file import GgufFile
from maxtext_overrides.models.model_section import text_of
from maxtext_overrides.models.rules import variables
from maxtext_overrides.models.safetensors_directory import SafetensorsDirectory
from maxtext_overrides.models.tensors import DTYPES, TensorSource, Writable, check_tensors
from rlax_plugin.config.loading import CONVERTED
from rlax_plugin.errors import ConfigError
from rlax_plugin.tokens.tokenizer import Tokenizer

SIDE_FILES, RECORD = "huggingface", "converted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Convertible:
    """A model that was read and checked, and of which nothing is written yet.

    Attributes:
      family: its architecture, as config.json names it.
      keys: MaxText's keys of the model.
      source: its tensors.
      variables: what they become.
      scanned: ``scan_layers``.
      dtype: of what is written, one of ``DTYPES``.
      has_tokenizer: there is a tokenizer among the files beside the weights.
      padding: number of tokens that MaxText adds to the model.
      write_beside: fills a directory with config.json and the tokenizer.
    """

    family: str
    keys: Mapping[str, Any]
    source: TensorSource
    variables: Sequence[Writable]
    scanned: bool
    dtype: str
    has_tokenizer: bool
    padding: int = 0
    write_beside: Callable[[Path], None]

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(math.prod(variable.shape) for variable in self.variables)

    @property
    def nbytes(self) -> int:
        """Of the checkpoint."""
        return self.parameters * DTYPES[self.dtype].itemsize

    def write(self, directory: Path, home: Path, progress: Callable[[int, int], None]) -> None:
        """Fills a directory.

        Args:
          directory: exists and is empty.
          home: where it will be in the end; the paths in ``model.yml`` begin with it.
          progress: (bytes written, bytes of all).

        Raises:
          ConfigError: a tensor cannot be read.
          OSError: the disk failed.
        """
        from maxtext_overrides.models import checkpoint

        beside = directory / SIDE_FILES
        beside.mkdir()
        self.write_beside(beside)
        keys = {**self.keys, "scan_layers": self.scanned}
        if self.has_tokenizer:
            keys |= {"tokenizer_type": "huggingface", "tokenizer_path": str(home / SIDE_FILES)}
        keys["load_parameters_path"] = str(home / checkpoint.ITEMS)
        (directory / CONVERTED).write_text(text_of(self.family, keys), encoding="utf-8")
        record = {
            "source": self.source.where,
            "architecture": self.family,
            "dtype": self.dtype,
            "tensors": len(self.source.shapes),
            "variables": len(self.variables),
            "bytes": self.nbytes,
        }
        (directory / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        checkpoint.write(
            directory, self.variables, self.source.read, DTYPES[self.dtype], self.scanned, progress
        )


def examine(path: Path, dtype: str, scanned: bool) -> Convertible:
    """Reads and checks a model; the tensors' values are read when it is written.

    Args:
      path: a Hugging Face directory, or a GGUF file.
      dtype: one of ``DTYPES``.
      scanned: ``scan_layers``.

    Raises:
      ConfigError: it is neither of them, it is damaged or not supported, or its parts contradict
        each other.
    """
    if path.is_dir():
        return _directory(path, dtype, scanned)
    if path.is_file():
        return _file(path, dtype, scanned)
    reason = "must be a directory with config.json and safetensors, or a GGUF file"
    raise ConfigError("SOURCE", str(path), reason)


def _directory(path: Path, dtype: str, scanned: bool) -> Convertible:
    config = path / side_files.CONFIG
    if not config.exists():
        raise ConfigError("SOURCE", str(path), f"has no {side_files.CONFIG}")
    content = huggingface_config.read(config)
    family = huggingface_config.family_of(content, config)
    has_tokenizer, padding = side_files.has_tokenizer(path), 0
    if family in huggingface_config.FAMILIES:
        architecture = huggingface_config.architecture(content, config)
        keys, source = architecture.maxtext_keys(), SafetensorsDirectory(path)
        check_tensors(source, architecture)
        found: Sequence[Writable] = variables(architecture, scanned)
    else:
        # MaxText takes seconds to import.
        from maxtext_overrides.models import named_model

        model = named_model.examine(content, family, path, scanned)
        keys = {**model.keys, "vocab_size": model.vocab_size}
        source, found = model.source, model.variables
        padding = model.vocab_size - content["vocab_size"]
    if has_tokenizer:
        _check_tokenizer(Tokenizer.load(path, "SOURCE").size, keys["vocab_size"] - padding, path)

    def write_beside(directory: Path) -> None:
        for name in (side_files.CONFIG, side_files.GENERATION):
            side_files.copy(path / name, directory / name)
        side_files.copy_tokenizer(path, directory)

    return Convertible(
        family=family,
        keys=keys,
        source=source,
        variables=found,
        scanned=scanned,
        dtype=dtype,
        has_tokenizer=has_tokenizer,
        padding=padding,
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
        family=architecture.family,
        keys=architecture.maxtext_keys(),
        source=source,
        variables=variables(architecture, scanned),
        scanned=scanned,
        dtype=dtype,
        has_tokenizer=True,
        write_beside=write_beside,
    )


def _check_tokenizer(size: int, vocab_size: int, path: Path) -> None:
    """Raises ConfigError if the tokenizer has ids that the model has not."""
    if size > vocab_size:
        reason = (
            f"the tokenizer has ids up to {size - 1}, but the model has only {vocab_size} tokens"
        )
        raise ConfigError("SOURCE", str(path), reason)
