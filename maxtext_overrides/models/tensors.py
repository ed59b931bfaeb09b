"""Interfaces of tensor sources, and the check that a source has the tensors of its architecture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import ml_dtypes
import numpy as np

from maxtext_overrides.models.architecture import Architecture
from maxtext_overrides.models.rules import tensor_shapes
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
"""The dtypes in which weights may be written."""

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
# Tables of rotary positions, which old checkpoints carry and nothing needs.
_COMPUTED = (".rotary_emb.inv_freq",)
_MOST_NAMES, _LONGEST_NAME = 3, 100  # in a message; characters


class TensorSource(Protocol):
    """A source of the tensors of one model, under their Hugging Face names."""

    @property
    def where(self) -> str:
        """The path of the directory or file, for messages."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor by name."""
        ...

    @property
    def doubles(self) -> Collection[str]:
        """The names of tensors in float64, which is rounded."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Reads one tensor, in a floating-point dtype, without keeping a copy.

        Raises:
          ConfigError: the tensor cannot be read.
        """
        ...


def check_tensors(source: TensorSource, architecture: Architecture) -> None:
    """Compares names and shapes with those that the architecture needs.

    Args:
      source: the tensors.
      architecture: the model, as its config describes it.

    Raises:
      ConfigError: a tensor is missing, not expected, or has another shape.
    """
    stored_twice = architecture.tied and _HEAD in source.shapes
    if stored_twice:
        _check_tied(source)
    found = {name: v for name, v in source.shapes.items() if name != _HEAD or not stored_twice}
    check_shapes(source.where, found, tensor_shapes(architecture), architecture.family)


def check_shapes(
    where: str,
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
    whose: str,
) -> None:
    """Compares names and shapes of tensors.

    Args:
      where: path of the source, for messages.
      whose: what has the expected tensors, for messages.

    Raises:
      ConfigError: a tensor is missing, not expected, or has another shape.
    """
    surplus = {name for name in found.keys() - expected.keys() if not name.endswith(_COMPUTED)}
    if missing := sorted(expected.keys() - found.keys()):
        also = f"; it has {_listed(sorted(surplus))} instead" if surplus else ""
        reason = f"lacks {_count(missing)} of {whose}: {_listed(missing)}{also}"
        raise ConfigError("SOURCE", where, reason)
    if surplus:
        listed = f"{whose} does not have: {_listed(sorted(surplus))}"
        raise ConfigError("SOURCE", where, f"has {_count(surplus)} that {listed}")
    for name, shape in expected.items():
        if found[name] != shape:
            reason = (
                f"the tensor {name} has shape {list(found[name])}, but {list(shape)} follows from "
                "the model's config"
            )
            raise ConfigError("SOURCE", where, reason)


def _check_tied(source: TensorSource) -> None:
    """Raises ConfigError if a model with a tied head has an output head that differs."""
    shapes = source.shapes
    if shapes.get(_HEAD) != shapes.get(_EMBEDDING) or not np.array_equal(
        source.read(_HEAD), source.read(_EMBEDDING)
    ):
        reason = f"says tie_word_embeddings, but {_HEAD} differs from {_EMBEDDING}"
        raise ConfigError("SOURCE", source.where, reason)


def shown(name: str) -> str:
    """Returns a tensor's name in a form that is safe in messages, as files can contain any name."""
    return one_line(name, _LONGEST_NAME)


def _count(names: object) -> str:
    number = len(names) if isinstance(names, list | set) else 0
    return "a tensor" if number == 1 else f"{number} tensors"


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(map(shown, names[:_MOST_NAMES])) + (f" and {more} more" if more > 0 else "")
