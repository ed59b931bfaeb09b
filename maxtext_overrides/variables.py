"""Defines which variables of a model make a weight version, and their names.

A version is every variable that is neither cache nor RNG state nor an intermediate result, so
router biases of mixture-of-experts models (variables, but not ``nnx.Param``) are included. A name
is the variable's path joined by dots; it is the same in the trainer's model (``state.model`` of
MaxText's NNX train state) and in MaxEngine's, as long as both use one config.

Upstream symbols: flax ``nnx.State``, ``nnx.to_flat_state``, ``nnx.from_flat_state``; tested with
flax 0.12.8. Delete when MaxText itself names the variables of a served model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flax import nnx

from rlax_plugin.base.errors import WeightsError

UNPUBLISHED = (nnx.Cache, nnx.RngState, nnx.Intermediate)


def _named(state: nnx.State) -> Iterator[tuple[str, nnx.Variable]]:
    for path, variable in nnx.to_flat_state(state):
        if not isinstance(variable, UNPUBLISHED):
            yield ".".join(map(str, path)), variable


def published(state: nnx.State) -> dict[str, Any]:
    """Returns the value of every variable a weight version holds, by name and sorted by name.

    Args:
      state: state of a model, concrete (arrays) or abstract (``jax.ShapeDtypeStruct``).
    """
    return {name: variable.get_value() for name, variable in sorted(_named(state))}


def restore(state: nnx.State, arrays: Mapping[str, Any]) -> nnx.State:
    """Returns a model's state with the arrays of a version; the inverse of ``published``.

    Args:
      state: concrete or abstract, of the model the arrays belong to; it is not changed.
      arrays: name -> array for exactly the names of ``published(state)``.

    Returns:
      A state of the same structure; caches, RNG state and intermediates are those of ``state``.

    Raises:
      WeightsError: names or shapes differ from the model's.
    """
    expected = published(state)
    if unequal := sorted(expected.keys() ^ arrays.keys()):
        name = unequal[0]
        side = "is missing from the weights" if name in expected else "is not in the model"
        raise WeightsError(f"variable {name!r} {side} ({len(unequal)} names differ)")
    flat = []
    for path, variable in nnx.to_flat_state(state):
        name = ".".join(map(str, path))
        if not isinstance(variable, UNPUBLISHED):
            value, want = arrays[name], expected[name]
            if tuple(value.shape) != tuple(want.shape):
                raise WeightsError(
                    f"variable {name!r} has shape {tuple(value.shape)}, "
                    f"but the model has {tuple(want.shape)}"
                )
            variable = variable.replace(value)
        flat.append((path, variable))
    return nnx.from_flat_state(flat)
