"""Writes MaxText's weights as a directory that transformers loads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from maxtext_overrides.models import huggingface_config
from maxtext_overrides.models.architecture import Architecture
from maxtext_overrides.models.maxtext_keys import of_maxtext
from maxtext_overrides.models.reading import StoredWeights
from maxtext_overrides.models.rules import Variable, variables
from maxtext_overrides.models.side_files import CONFIG, GENERATION, copy_tokenizer
from maxtext_overrides.models.tensor_files import write_tensors
from maxtext_overrides.models.tensors import DTYPES
from rlax_plugin.base.errors import ConfigError

_MOST_BYTES = 1 << 30  # of a file of a version, whose tensors are in memory until it is written


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of an exported directory apart from the values of the weights.

    Attributes:
      variables: the model's variables.
      config: content of config.json, without a dtype.
      made: True if config.json is made from MaxText's keys, and not copied from the tokenizer's
        directory.
      generation: content of generation_config.json.
      tokenizer: directory with the tokenizer's files.
    """

    variables: Sequence[Variable]
    config: Mapping[str, Any]
    made: bool
    generation: Mapping[str, Any]
    tokenizer: Path

    @property
    def name(self) -> str:
        """The name of the architecture."""
        return str((self.config.get("architectures") or [self.config.get("model_type")])[0])


def describe(
    config: Any, tokenizer: Path, special_ids: Callable[[], Mapping[str, Any]]
) -> Description:
    """Returns the description of the model that a MaxText config describes.

    The config.json beside the tokenizer is kept if it describes the same model, as it does for a
    converted model; otherwise a new one is made.

    Args:
      config: MaxText's, validated.
      tokenizer: directory of the tokenizer's files.
      special_ids: returns ``eos_token_id`` and similar keys, for files that have to be made.

    Raises:
      ConfigError: the model is of no family that can be exported, or a file there is not JSON.
    """
    found = of_maxtext(config)
    content, known = _given(tokenizer / CONFIG, found)
    if known is None:
        content = {**huggingface_config.content_of(found), **special_ids()}
    content = {key: value for key, value in content.items() if key not in ("dtype", "torch_dtype")}
    generation = _json(tokenizer / GENERATION) or special_ids()
    parts = variables(known or found, config.scan_layers)
    return Description(parts, content, known is None, generation, tokenizer)


def _given(path: Path, wanted: Architecture) -> tuple[dict[str, Any], Architecture | None]:
    """Returns the content of a config.json, and its architecture if that is the wanted one."""
    content = _json(path)
    if content is None:
        return {}, None
    try:
        said = huggingface_config.architecture(content, path)
    except ConfigError:
        return {}, None  # of a model that is not even of one of these families
    # Llama and Mistral are one thing to MaxText, and its longest sequence is the run's. What the
    # attention logits of a Gemma 2 are divided by is inside the query kernel.
    known = replace(wanted, query_scalar=said.query_scalar)
    alike = replace(said, family=wanted.family, positions=wanted.positions, block=wanted.block)
    inside = wanted.block == "gemma2"
    return content, known if alike == (known if inside else wanted) else None


def _json(path: Path) -> dict[str, Any] | None:
    return huggingface_config.read(path) if path.is_file() else None


def check_weights(model: Sequence[Variable], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that weights of these shapes are exactly those of the model.

    Raises:
      ConfigError: a variable is missing, has another shape, or is not in the model.
    """
    for variable in model:
        shape = shapes.get(variable.name)
        if shape != variable.shape:
            held = "not in it" if shape is None else f"{list(shape)} in it"
            reason = f"must be {list(variable.shape)} by MaxText's keys, and is {held}"
            raise ConfigError(f"weights: {variable.name}", None, reason)
    if surplus := sorted(shapes.keys() - {one.name for one in model}):
        reason = "is in the weights, and not in the model that MaxText's keys describe"
        raise ConfigError(f"weights: {surplus[0]}", None, reason)


def write(
    directory: Path,
    model: Description,
    weights: StoredWeights,
    dtype: str,
    most_bytes: int,
) -> list[str]:
    """Writes the exported model into a directory.

    Args:
      directory: the target.
      model: description of the model.
      weights: weights that passed ``check_weights``.
      dtype: one of ``DTYPES``.
      most_bytes: largest size of one file of weights.

    Returns:
      Names of the files with weights.

    Raises:
      RlaxError: a variable cannot be read.
    """
    kind = DTYPES[dtype]
    files = write_variables(directory, model.variables, weights, lambda _: kind, most_bytes)
    put(directory / CONFIG, {**model.config, "dtype": dtype})
    put(directory / GENERATION, model.generation)
    copy_tokenizer(model.tokenizer, directory)
    return files


def write_version(
    directory: Path,
    model: Sequence[Variable],
    weights: StoredWeights,
    dtypes: Mapping[str, np.dtype],
    wrote: Callable[[str, np.ndarray], None],
) -> None:
    """Writes the tensors of a weight version, each in the dtype of its variable.

    A variable with other values than its tensors (``Variable.is_rescaled``) is written as float32.

    Args:
      directory: the target.
      model: the model's variables.
      weights: the variables; taken one after the other.
      dtypes: dtype of each variable.
      wrote: called with the name and value of each tensor.

    Raises:
      ConfigError: the variables are not those of the model, or have a dtype that is not one of
        ``DTYPES``.
    """
    check_weights(model, weights.shapes)
    for name in weights.shapes:
        if dtypes[name] not in DTYPES.values():
            reason = f"must be of {' or '.join(DTYPES)}"
            raise ConfigError(f"weights: {name}", dtypes[name].name, reason)

    def kind(variable: Variable) -> np.dtype:
        return DTYPES["float32"] if variable.is_rescaled else dtypes[variable.name]

    write_variables(directory, model, weights, kind, _MOST_BYTES, wrote)


def write_variables(
    directory: Path,
    model: Sequence[Variable],
    weights: StoredWeights,
    kind: Callable[[Variable], np.dtype],
    most_bytes: int,
    wrote: Callable[[str, np.ndarray], None] = lambda name, tensor: None,
    stem: str = "model",
) -> list[str]:
    """Writes the tensors of variables, each in the dtype of ``kind``.

    Args:
      wrote: called with the name and value of each tensor.
      directory, most_bytes, stem: see ``tensor_files.write_tensors``; also what it returns.
    """
    shapes, dtypes = {}, {}
    for variable in model:
        shapes |= variable.tensor_shapes
        dtypes |= dict.fromkeys(variable.tensors, variable.tensor_dtype(kind(variable)))

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for variable in model:
            value = np.asarray(weights.take(variable.name))
            for name, tensor in variable.to_tensors(value, kind(variable)):
                wrote(name, tensor)
                yield name, tensor

    return write_tensors(directory, tensors(), shapes, dtypes, most_bytes, stem)


def parameters(model: Description) -> int:
    """Returns the number of parameters."""
    return sum(math.prod(variable.shape) for variable in model.variables)


def put(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
