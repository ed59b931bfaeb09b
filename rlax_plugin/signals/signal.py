"""The interface of a batch signal, and the arrays by which one has a say in the advantages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from rlax_plugin.objective.arrays import ArraySpec
from rlax_plugin.objective.batches import TOKEN_REWARDS
from rlax_plugin.objective.terms import LossTerm
from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.signals.model_view import ModelView
from rlax_plugin.signals.state_files import SignalState

VALUES = "rl_values"

ADVANTAGE_INPUTS: dict[str, ArraySpec] = {
    # Read at the completion tokens of scored samples; they need not reach a device. The token
    # rewards of several signals add up.
    TOKEN_REWARDS: ArraySpec(np.dtype(np.float64)),
    VALUES: ArraySpec(np.dtype(np.float64)),
}
"""What ``Outcomes`` has beside rewards. A signal that adds one of them has the trainer compute the
advantages."""


class BatchSignal:
    """Derive from it, and write what is needed; a trainer calls all of it on its own thread.

    For every step, ``complete`` is called before and ``learn`` after the advantages of the batch
    are computed, both before the first update with the batch.

    A step may be trained again after a kill, from the newest checkpoint and with the same batch. So
    whatever a later step depends on belongs into ``save`` and ``restore``; a signal without such a
    state needs neither.

    Attributes:
      arrays: what ``complete`` returns. The loss gets all of it but ``ADVANTAGE_INPUTS``.
      terms: name -> what is added to the loss; it may read the signal's arrays. The mean is
        reported as ``objective/<name>``.
      metrics: of the latest batch: ``objective/<name>`` -> sum over its trained tokens. The mean is
        reported.
    """

    arrays: Mapping[str, ArraySpec] = MappingProxyType({})
    terms: Mapping[str, LossTerm] = MappingProxyType({})
    metrics: Mapping[str, float] = MappingProxyType({})

    def start(self, model: ModelView) -> None:
        """Called once, before the first step.

        Args:
          model: with the weights that training starts or goes on from.
        """

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        """What this signal adds to a batch.

        Args:
          model: its weights are version ``step - 1``.
          step: counts from 1.
          batch: of ``objective.batches``, whole, with what earlier signals added; not to be
            changed. Its ``rl_advantages`` may be replaced later.

        Returns:
          name -> array, of the specs in ``arrays``.
        """
        return {}

    def learn(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Learns from a batch, which now has the advantages that are trained."""

    def save(self, step: int, state: SignalState) -> None:
        """Writes what ``restore`` needs, before the trainer's checkpoint of ``step``."""

    def restore(self, step: int, state: SignalState) -> None:
        """Goes back to what ``save`` wrote at ``step``; called after ``start``, if at all.

        Raises:
          TrainingError: it is missing or damaged; ``state.get`` says so.
        """
