"""A trainer's model, as signals see it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rlax_plugin.base.errors import TrainingError, alternatives
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.signals.value_model import ValueModel, ValueModelChoice


class Part(NamedTuple):
    """Some rows of a batch, and the model's outputs for them.

    Attributes:
      rows: indices of these rows in the batch.
      batch: their arrays.
      outputs: name -> [rows, length, ...], arrays of the model's framework; on accelerators they
        are still in device memory.
    """

    rows: slice
    batch: Mapping[str, np.ndarray]
    outputs: Mapping[str, Any]


class ModelView:
    """The model with the weights that a step begins with; a trainer derives its own from it.

    Attributes:
      outputs: name -> spec of each available output, all without gradient. ``logprobs`` and
        ``entropy`` are of the target tokens, at the temperature of the samples, nats: of those that
        were sampled, and not defined for others, if the batch has ``rl_group``, and of all if it
        does not. ``features`` are those of the last layer, to which the output head is applied.
      version: of the weights: ``step - 1`` in ``complete`` and ``learn`` of a step, and the last
        trained step in ``start``.
      resumable: True if the trainer writes checkpoints, from which a run may continue.
    """

    outputs: Mapping[str, ArraySpec] = MappingProxyType({})
    version: int = 0
    resumable: bool = True

    def parts(
        self, batch: Mapping[str, np.ndarray], names: Sequence[str], weights: Any = None
    ) -> Iterator[Part]:
        """Runs the model over a batch, one part after the other; all rows come in their order.

        Only one part's outputs need to be in memory at a time, so this suits large outputs.

        Args:
          batch: of ``training.objective.batches``, or other rows with MaxText's six arrays.
          names: of ``outputs``.
          weights: of ``keep`` or ``load``; None: the present ones.

        Raises:
          TrainingError: the trainer has no such output.
        """
        for name in names:
            if name not in self.outputs:
                raise TrainingError(
                    f"a signal asks the model for {name!r}, which this trainer does not show; "
                    f"{alternatives(name, self.outputs)}"
                )
        return self._parts(batch, tuple(names), weights)

    def forward(
        self, batch: Mapping[str, np.ndarray], *names: str, weights: Any = None
    ) -> dict[str, np.ndarray]:
        """Returns the outputs for a whole batch, in the memory of the host; see ``parts``.

        Returns:
          name -> [rows, length, ...], of the specs in ``outputs``.
        """
        found: dict[str, list[np.ndarray]] = {name: [] for name in names}
        for part in self.parts(batch, names, weights):
            for name, arrays in found.items():
                arrays.append(np.asarray(part.outputs[name]))
        return {name: np.concatenate(arrays) for name, arrays in found.items()}

    def _parts(
        self, batch: Mapping[str, np.ndarray], names: tuple[str, ...], weights: Any
    ) -> Iterator[Part]:
        """Implements ``parts``; a trainer with outputs overrides it."""
        raise NotImplementedError

    def keep(self, *, offload: bool = False) -> Any:
        """Returns a copy of the weights, for ``weights`` of ``parts``; no update changes it.

        Args:
          offload: True if it is in the memory of the host between uses.
        """
        raise TrainingError("this trainer keeps no copies of its weights for signals")

    def save(self, path: str) -> None:
        """Writes the present weights for ``load``, in place of earlier ones.

        Args:
          path: a directory, path or URL.
        """
        raise TrainingError("this trainer writes no weights for signals")

    def load(self, path: str, key: str, *, offload: bool = False) -> Any:
        """Reads weights, and returns them as ``keep`` does.

        Args:
          path: of ``save``, or another one that the trainer can read.
          key: of the config, to name in an error.

        Raises:
          ConfigError: there are none, or they are another model's.
        """
        raise TrainingError("this trainer reads no weights for signals")

    def value_model(self, choice: ValueModelChoice) -> ValueModel:
        """Builds a model with a value head and an optimizer, whose weights are its own.

        Raises:
          ConfigError: the choice does not suit the trainer's model.
        """
        raise TrainingError("this trainer builds no models for signals")
