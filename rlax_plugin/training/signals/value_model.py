"""A model that estimates values, which a trainer builds for a signal and the signal trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rlax_plugin.training.signals.learner import Optimizer

ValueLoss = Callable[[Any, Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]
"""Maps (values, float32 [rows, length]; arrays of these rows) to a sum to minimise, and others.

It is traced by JAX, often over a micro-batch."""


@dataclass(frozen=True, slots=True)
class ValueModelChoice:
    """The model that a signal wants.

    Attributes:
      start: the first weights: ``policy``, those that training starts from; ``scratch``, random
        ones; or a checkpoint of parameters, a path or URL. The value head starts at 0.
      keys: the trainer's model keys that differ from the policy's.
      optimizer: of all its weights.
      key: config key of ``start``, to name in an error.
      keys_key: config key of ``keys``.
    """

    start: str
    keys: Mapping[str, Any]
    optimizer: Optimizer
    key: str = "start"
    keys_key: str = "model"


class ValueModel(Protocol):
    """A model with a value head. Its weights are no part of a weight version."""

    def values(self, batch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the value of the state before each target, float32 [rows, length].

        Args:
          batch: as for ``ModelView.parts``.
        """
        ...

    def update(
        self, batch: Mapping[str, np.ndarray], loss: ValueLoss, weight: float
    ) -> tuple[float, dict[str, float]]:
        """Takes one step of the optimizer.

        The gradient is that of the loss's sum over all rows, divided by ``weight``, however the
        rows are cut into micro-batches.

        Args:
          batch: as for ``values``, with the arrays that the loss reads, float32 [rows, length].
          loss: the same function for every update of a run.
          weight: above 0.

        Returns:
          The sums of the loss, before the step.

        Raises:
          TrainingError: the loss or the gradient is NaN or infinite.
        """
        ...

    def save(self, path: str) -> None:
        """Writes weights and optimizer for ``restore``, in place of earlier ones; waits for it.

        Args:
          path: a directory, path or URL.
        """
        ...

    def restore(self, path: str) -> None:
        """Reads what ``save`` wrote.

        Raises:
          TrainingError: it is missing, damaged, or of another model.
        """
        ...
