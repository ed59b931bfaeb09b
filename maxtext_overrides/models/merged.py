"""Weights in which low-rank adapters are added to their base, for a model that has no adapters.

``base.json`` in a run's directory tells the base and the alpha of the adapters in its checkpoints.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from maxtext_overrides.adapters import is_adapter, updated
from maxtext_overrides.models.reading import StoredWeights
from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.weights.fingerprint import fingerprint_numpy

BASE_KEY = "load_parameters_path"
_RECORD = "base.json"


@dataclass(frozen=True, slots=True)
class RecordedBase:
    """What the adapters of a run were trained with.

    Attributes:
      run: path or URL of the run.
      path: ``load_parameters_path``; empty: the base was made from the seed.
      alpha: ``lora.lora_alpha``.
      fingerprints: variable of the base -> its fingerprint.
      dtypes: variable of the base -> the name of its dtype, which its file need not have.
    """

    run: str
    path: str
    alpha: float
    fingerprints: Mapping[str, int]
    dtypes: Mapping[str, str]

    def check_alpha(self, config: Any) -> None:
        """Raises a ConfigError if MaxText's config has another alpha."""
        if (alpha := config.lora.lora_alpha) != self.alpha:
            reason = f"must be {self.alpha!r}, with which the adapters in {self.run} were trained"
            raise ConfigError("lora.lora_alpha", alpha, reason)

    def checked(self, path: str, name: str, array: np.ndarray) -> np.ndarray:
        """Returns a variable from the files of the base in the dtype that training had.

        Raises:
          ConfigError: it is not that of the base.
        """
        array = array.astype(np.dtype(self.dtypes.get(name, array.dtype)))
        found = int(fingerprint_numpy({name: array})[name])
        if found != self.fingerprints.get(name):
            raise self.mismatch(path, name, found)
        return array

    def mismatch(self, path: str, name: str, found: int | None) -> ConfigError:
        """Returns the error for a base whose variable has another fingerprint, or is missing."""
        reason = (
            f"is not the base of the adapters in {self.run}, {self.path or 'one of the seed'}: "
            f"{name} has fingerprint {found}, and had {self.fingerprints.get(name)}"
        )
        return ConfigError(BASE_KEY, path, reason)


def record(base: RecordedBase) -> None:
    """Writes ``base.json`` of a run."""
    RunFiles(base.run).put_json(_RECORD, asdict(base))


def recorded_base(run: str) -> RecordedBase | None:
    """Reads ``base.json`` of a run, of which this is the path or URL; None if there is none.

    Raises:
      RlaxError: it cannot be read.
    """
    files = RunFiles(run)
    if (document := files.get_json(_RECORD)) is None:
        return None
    try:
        return RecordedBase(
            run,
            str(document["path"]),
            float(document["alpha"]),
            {str(name): int(value) for name, value in document["fingerprints"].items()},
            {str(name): str(value) for name, value in document["dtypes"].items()},
        )
    except (TypeError, LookupError, ValueError, AttributeError) as error:
        raise RlaxError(f"{files.location(_RECORD)} is damaged: {error!r}") from error


def base_of(checkpoint: str, key: str, value: str) -> RecordedBase:
    """Returns the base of the adapters in a checkpoint of a run.

    Args:
      checkpoint: path or URL, ``RUN/checkpoints/NAME/items``; ``items`` may be left out.
      key, value: config key and its value, for a message.

    Raises:
      ConfigError: there is no record of it.
      RlaxError: the record cannot be read.
    """
    path = checkpoint.rstrip("/")
    step = os.path.dirname(path) if os.path.basename(path) == "items" else path
    run = os.path.dirname(os.path.dirname(step))
    if (found := recorded_base(run)) is None:
        reason = f"the base of the adapters in {checkpoint} is unknown: {run} has no {_RECORD}"
        raise ConfigError(key, value, reason)
    return found


class MergedWeights:
    """``StoredWeights``: W + (alpha / rank) A B, in float32, where there is an adapter.

    Args:
      base: the base; adapters in it are left out.
      adapters: the adapters; other variables in it are left out.
      config: MaxText's, whose alpha and ``load_parameters_path`` are used.
      recorded: what the base must be; None: it is known to be the right one.

    Raises:
      ConfigError: an adapter has no matrix, or is half of one.
    """

    def __init__(
        self,
        base: StoredWeights,
        adapters: StoredWeights,
        config: Any,
        recorded: RecordedBase | None = None,
    ):
        self._base, self._adapters, self._recorded = base, adapters, recorded
        self._path, self._axis = config.load_parameters_path, config.param_scan_axis
        self._alpha = config.lora.lora_alpha
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: shape for name, shape in base.shapes.items() if not is_adapter(name)
        }
        names = set(filter(is_adapter, adapters.shapes))
        self._adapted = {name.removesuffix("_lora_a").removesuffix("_lora_b") for name in names}
        wanted = {f"{name}_lora_{half}" for name in self._adapted for half in "ab"}
        if unequal := sorted((wanted ^ names) | (self._adapted - self.shapes.keys())):
            raise ConfigError(f"weights: {unequal[0]}", None, "is not in them")
        if not names:
            raise ConfigError("lora.enable_lora", True, "the weights have no adapters")

    def take(self, name: str) -> np.ndarray:
        """See ``StoredWeights``.

        Raises:
          ConfigError: the base is another one than that of the adapters.
        """
        kernel = self._base.take(name)
        if self._recorded is not None:
            kernel = self._recorded.checked(self._path, name, kernel)
        if name not in self._adapted:
            return kernel
        names = (f"{name}_lora_{half}" for half in "ab")
        a, b = map(self._adapters.take, names)
        return updated(kernel, a, b, self._alpha, self._axis)
