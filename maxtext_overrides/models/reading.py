"""Reads weights to export, one variable after the other, named as in a weight version.

A training checkpoint holds optimizer state as well, usually twice the size of the parameters. It
is never read: Orbax restores single arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError

_COLLECTION = ("params", "params")  # where MaxText's checkpoints have a model's parameters


class StoredWeights(Protocol):
    """A source of weights.

    Attributes:
      shapes: name -> shape of every variable.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def take(self, name: str) -> np.ndarray:
        """Returns the variable's value; may be called once per variable."""
        ...


class HeldWeights:
    """A weight version in memory; each array is released once it is taken.

    Args:
      arrays: name -> array; becomes empty.
    """

    def __init__(self, arrays: dict[str, np.ndarray]):
        self._arrays = arrays
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(array.shape) for name, array in arrays.items()
        }

    def take(self, name: str) -> np.ndarray:
        return self._arrays.pop(name)


class Checkpoint:
    """The parameters of a MaxText checkpoint: one of a training, or of parameters only.

    Args:
      path: absolute path or URL of its ``items``, or of the directory around them.

    Raises:
      ConfigError: there is no such checkpoint.
    """

    def __init__(self, path: str):
        from orbax import checkpoint as ocp

        self._path, self._orbax = _items(path), ocp
        self._reader = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        tree = _tree("checkpoint", path, self._reader)
        for key in _COLLECTION:
            tree = tree.get(key, {}) if isinstance(tree, Mapping) else {}
        found = dict(_leaves(tree, ()))
        if not found:
            reason = "has no parameters that can be read where MaxText writes them (params/params)"
            raise ConfigError("checkpoint", path, reason)
        self._keys = {".".join(keys): keys for keys in found}
        self.shapes: Mapping[str, tuple[int, ...]] = {
            ".".join(keys): shape for keys, shape in found.items()
        }

    def take(self, name: str) -> np.ndarray:
        """See ``StoredWeights``.

        Raises:
          RlaxError: the variable cannot be read.
        """
        ocp, keys = self._orbax, (*_COLLECTION, *self._keys[name])
        wanted = ocp.RestoreArgs(restore_type=np.ndarray)
        arguments = ocp.args.PyTreeRestore(
            item=_nested(keys, 0), restore_args=_nested(keys, wanted), partial_restore=True
        )
        try:
            found: Any = self._reader.restore(self._path, args=arguments)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RlaxError(f"{self._path}: {name} cannot be read: {error}") from error
        for key in keys:
            found = found[key]
        return found


def stored_shapes(key: str, path: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of all variables that MaxText finds in a checkpoint, by name.

    Args:
      key: config key whose value the path is, for messages.
      path: see ``Checkpoint``.

    Raises:
      ConfigError: there is no such checkpoint.
    """
    from orbax import checkpoint as ocp

    tree = _tree(key, path, ocp.Checkpointer(ocp.PyTreeCheckpointHandler()))
    collections = tree.get(_COLLECTION[0]) if isinstance(tree, Mapping) else None
    found = {
        ".".join(keys): shape
        for collection in (collections or {}).values()
        for keys, shape in _leaves(collection, ())
    }
    if not found:
        raise ConfigError(key, path, "is a checkpoint without a model's parameters")
    return found


def _tree(key: str, path: str, reader: Any) -> Any:
    """Returns Orbax's metadata of a checkpoint's arrays.

    Raises:
      ConfigError: the checkpoint cannot be read.
    """
    try:
        metadata = reader.metadata(_items(path)).item_metadata
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(key, path, f"cannot be read: {error!r}") from error
    return {} if metadata is None else metadata.tree


def _items(path: str) -> str:
    inside = f"{path.rstrip('/')}/items"
    if "://" in path:
        from etils import epath

        return inside if epath.Path(inside).exists() else path
    return os.path.abspath(inside if os.path.isdir(inside) else path)


def _leaves(tree: Any, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Yields (keys, shape) of every array."""
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from _leaves(below, (*keys, str(key)))
    elif tree is not None:
        yield keys, tuple(tree.shape)


def _nested(keys: tuple[str, ...], value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


Weights = str | Callable[[], dict[str, np.ndarray]]
"""Path or URL of a checkpoint, or a function that returns a weight version: name -> array."""


def opened(weights: Weights) -> StoredWeights:
    """Opens a checkpoint or reads a weight version into memory.

    Raises:
      ConfigError: there is no such checkpoint.
    """
    return Checkpoint(weights) if isinstance(weights, str) else HeldWeights(weights())
