"""The interface of a batch signal, and the arrays with which a signal affects the advantages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from rlax_plugin.ports.protocols import Arrays
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.batches import TOKEN_REWARDS
from rlax_plugin.training.objective.terms import LossTerm
from rlax_plugin.training.signals.model_view import ModelView
from rlax_plugin.training.signals.state_files import SignalState

VALUES = "rl_values"
FINAL_VALUES = "rl_final_values"
RETURNS = "rl_returns"
"""float64: what the values of a batch should have been, 0 outside of completions; see ``learn``."""

ADVANTAGE_INPUTS: dict[str, ArraySpec] = {
    # Read at the completion tokens of scored samples; they need not reach a device. The token
    # rewards of several signals add up.
    TOKEN_REWARDS: ArraySpec(np.dtype(np.float64)),
    VALUES: ArraySpec(np.dtype(np.float64)),
    # The value of the state after a token; read at the last token of truncated episodes, together
    # with values.
    FINAL_VALUES: ArraySpec(np.dtype(np.float64)),
}
"""The inputs of advantages beside rewards, as in ``Outcomes``.

A signal that adds one of them has the trainer compute the advantages."""


class BatchSignal:
    """The base class of signals: override the methods you need; a trainer calls all on its thread.

    For every step, ``complete`` is called before and ``learn`` after the advantages of the batch
    are computed, both before the first update with the batch.

    A step may be trained again after a kill, from the newest checkpoint and with the same batch. So
    all state that a later step depends on belongs in ``save`` and ``restore``; a signal without
    such a state needs neither.

    Attributes:
      arrays: the arrays that ``complete`` returns. The loss gets all of them but
        ``ADVANTAGE_INPUTS``.
      terms: name -> term added to the loss; it may read the signal's arrays. The mean is
        reported as ``objective/<name>``.
      metrics: of the latest batch: ``objective/<name>`` -> (sum, weight). Their quotient is
        reported, and nothing if the weight is 0.
      warm_up_steps: number of first steps in which only signals learn: the weights of the policy,
        and the state of its optimizer, stay as they are.
    """

    arrays: Mapping[str, ArraySpec] = MappingProxyType({})
    terms: Mapping[str, LossTerm] = MappingProxyType({})
    metrics: Mapping[str, tuple[float, float]] = MappingProxyType({})
    warm_up_steps: int = 0

    def start(self, model: ModelView) -> None:
        """Called once, before the first step.

        Args:
          model: with the weights that training starts or continues from.
        """

    def complete(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> Arrays:
        """Returns the arrays that this signal adds to a batch.

        Args:
          model: its weights are version ``step - 1``.
          step: counts from 1.
          batch: of ``training.objective.batches``, whole, with the arrays of earlier signals; not
            to be changed. Its ``rl_advantages`` may be replaced later.

        Returns:
          name -> array, of the specs in ``arrays``.
        """
        return {}

    def learn(self, model: ModelView, step: int, batch: Mapping[str, np.ndarray]) -> None:
        """Learns from a batch, which now has its final advantages.

        If a signal has added ``rl_values``, the batch also has ``rl_returns``, float64: what these
        values should have been, according to the advantage of the objective.
        """

    def save(self, step: int, state: SignalState) -> None:
        """Writes the state for ``restore``, before the trainer's checkpoint of ``step``."""

    def restore(self, step: int, state: SignalState) -> None:
        """Restores the state that ``save`` wrote at ``step``; called after ``start`` on a resume.

        Raises:
          TrainingError: it is missing or damaged; ``state.get`` raises it.
        """
