"""From MaxText's weights to a directory that transformers loads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from maxtext_overrides.models import huggingface_config, named_export
from maxtext_overrides.models.architecture import Architecture, of_maxtext
from maxtext_overrides.models.named_model import SIZES
from maxtext_overrides.models.reading import StoredWeights
from maxtext_overrides.models.rules import variables
from maxtext_overrides.models.side_files import CONFIG, GENERATION, copy_tokenizer
from maxtext_overrides.models.tensor_files import write_tensors
from maxtext_overrides.models.tensors import DTYPES
from rlax_plugin.errors import ConfigError


class Exportable(Protocol):
    """A variable and the tensors in it, by our rules or by MaxText's."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    def to_tensors(
        self, value: np.ndarray, dtype: np.dtype
    ) -> Iterator[tuple[str, np.ndarray]]: ...


@dataclass(frozen=True, slots=True)
class Description:
    """What the directory says of a model beside its weights.

    Attributes:
      variables: of the model.
      config: content of config.json, without a dtype.
      made: config.json is made from MaxText's keys; it is not that of the tokenizer's directory.
      generation: content of generation_config.json.
      tokenizer: directory with the tokenizer's files.
    """

    variables: Sequence[Exportable]
    config: Mapping[str, Any]
    made: bool
    generation: Mapping[str, Any]
    tokenizer: Path

    @property
    def name(self) -> str:
        """Of the architecture."""
        return str((self.config.get("architectures") or [self.config.get("model_type")])[0])


def describe(
    config: Any, tokenizer: Path, special_ids: Callable[[], Mapping[str, Any]]
) -> Description:
    """What will be said of the model that MaxText's config describes.

    The config.json beside the tokenizer is kept if it describes the same model, as it does of a
    model that was converted; otherwise one is made.

    Args:
      config: MaxText's, validated.
      tokenizer: directory of its files.
      special_ids: returns ``eos_token_id`` and its like, for files that have to be made.

    Raises:
      ConfigError: the model is neither Llama-shaped nor one that MaxText exports itself, or a file
        there is no JSON.
    """
    try:
        found = of_maxtext(config)
    except ConfigError:
        if (named := named_export.find(config)) is None:
            raise
        made, parts = named
        known = _same_sizes(tokenizer / CONFIG, made)
    else:
        made = huggingface_config.content_of(found)
        parts = variables(found, config.scan_layers)
        known = _given(tokenizer / CONFIG, found)
    content = known or {**made, **special_ids()}
    content = {key: value for key, value in content.items() if key not in ("dtype", "torch_dtype")}
    generation = _json(tokenizer / GENERATION) or special_ids()
    return Description(parts, content, known is None, generation, tokenizer)


def _same_sizes(path: Path, made: Mapping[str, Any]) -> dict[str, Any] | None:
    """The content of a config.json, if it is of the same named model."""
    content = _json(path)
    same = content is not None and all(content.get(key) == made.get(key) for key in SIZES)
    return content if same else None


def _given(path: Path, wanted: Architecture) -> dict[str, Any] | None:
    """The content of a config.json, if it describes that model."""
    content = _json(path)
    if content is None:
        return None
    try:
        said = huggingface_config.architecture(content, path)
    except ConfigError:
        return None  # of a model that is not even of one of these families
    # Llama and Mistral are one thing to MaxText, and its longest sequence is the run's.
    alike = replace(
        said,
        family=wanted.family,
        positions=wanted.positions,
        scaled_query=wanted.scaled_query,
    )
    return content if alike == wanted else None


def _json(path: Path) -> dict[str, Any] | None:
    return huggingface_config.read(path) if path.is_file() else None


def check_weights(model: Description, weights: StoredWeights) -> None:
    """Whether the weights are exactly those of the model.

    Raises:
      ConfigError: a variable is missing, has another shape, or is not in the model.
    """
    for variable in model.variables:
        shape = weights.shapes.get(variable.name)
        if shape != variable.shape:
            held = "not in it" if shape is None else f"{list(shape)} in it"
            reason = f"must be {list(variable.shape)} by MaxText's keys, and is {held}"
            raise ConfigError(f"weights: {variable.name}", None, reason)
    if surplus := sorted(weights.shapes.keys() - {one.name for one in model.variables}):
        reason = "is in the weights, and not in the model that MaxText's keys describe"
        raise ConfigError(f"weights: {surplus[0]}", None, reason)


def write(
    directory: Path,
    model: Description,
    weights: StoredWeights,
    dtype: str,
    most_bytes: int,
) -> list[str]:
    """Fills a directory.

    Args:
      weights: which passed ``check_weights``.
      dtype: one of ``DTYPES``.
      most_bytes: of one file of weights.

    Returns:
      Names of the files with weights.

    Raises:
      RlaxError: a variable cannot be read.
    """
    kind = DTYPES[dtype]
    shapes = {k: shape for v in model.variables for k, shape in v.tensor_shapes.items()}

    def tensors() -> Iterator[tuple[str, np.ndarray]]:
        for variable in model.variables:
            yield from variable.to_tensors(weights.take(variable.name), kind)

    files = write_tensors(directory, tensors(), shapes, kind, most_bytes)
    _put(directory / CONFIG, {**model.config, "dtype": dtype})
    _put(directory / GENERATION, model.generation)
    copy_tokenizer(model.tokenizer, directory)
    return files


def parameters(model: Description) -> int:
    """How many numbers the model has."""
    return sum(math.prod(variable.shape) for variable in model.variables)


def _put(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
