"""The parts of one objective, built, and the numbers that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlax_plugin.config import Algorithm
from rlax_plugin.training.objective.adaptive_kl import AdaptiveCoefficient
from rlax_plugin.training.objective.advantages import AdvantageSlot, Outcomes
from rlax_plugin.training.objective.inputs import TokenInputs, TokenOutputs

TokenFunction = Callable[[TokenInputs], Any]  # -> [rows, length]
"""A function in a slot of the objective.

It may also be a ``RatioFactor``, a ``StaleCorrection``, and have ``SlotMetrics``.
"""
Aggregation = Callable[[TokenInputs], tuple[Any, Any]]
"""Returns (weights_bt, total weight).

The total is a count, 0 or at least 1: trainers divide by max(sum of totals, 1).
"""
Loss = Callable[[TokenOutputs, Mapping[str, Any]], tuple[Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class ObjectiveSlots:
    """The parts of one objective, built, and its numbers.

    Attributes:
      aggregation: inputs -> (weights_bt, total weight).
      advantages: outcomes -> float64 [n] or [n, t]; numpy. Called by the controller, and by a
        trainer that adds token rewards.
      importance_weight: inputs -> weight_bt.
      grad_1: inputs -> term_bt, multiplied by the advantage.
      grad_2: inputs -> term_bt, added.
      corrections: inputs -> factor_bt, multiplied.
      algorithm: preset and config, merged.
      max_sequences: see ``TokenInputs``.
      updates_per_step: optimizer updates with one batch.
      max_staleness: see ``config.Staleness``.
      lists_signals: True if the config lists signals, which may give values later.
      steps: RL steps of the whole run; 0: not known.
      kl_aggregation: aggregation of the KL in the loss; None: that of the objective.
      gamma: see ``config.Guidance``; None: groups have no demonstrations.
    """

    aggregation: Aggregation
    advantages: AdvantageSlot
    importance_weight: TokenFunction
    grad_1: TokenFunction
    grad_2: TokenFunction
    corrections: tuple[TokenFunction, ...]
    algorithm: Algorithm
    max_sequences: int = 1
    updates_per_step: int = 1
    max_staleness: int = 1
    lists_signals: bool = False
    steps: int = 0
    kl_aggregation: Aggregation | None = None
    gamma: float | None = None

    @property
    def recorded_advantages(self) -> AdvantageSlot:
        """The advantages that the controller records, before signals of the config add values.

        They are what trains, unless a signal adds values or token rewards. Where the config lists
        signals and the slot needs values, these count as 0, and a sample has one advantage, the
        mean over its tokens, unless it has rewards at tokens: the trainer computes them again.
        """
        if not self.lists_signals:
            return self.advantages

        def before_signals(outcomes: Outcomes) -> Any:
            try:
                return self.advantages(outcomes)
            except Exception:  # noqa: BLE001  it may need values; any other error comes again
                mask_nt = outcomes.mask_nt
                found = self.advantages(replace(outcomes, values_nt=np.zeros(mask_nt.shape)))
                if np.ndim(found) == 1 or outcomes.token_rewards_nt is not None:
                    return found
                return np.where(mask_nt, found, 0.0).sum(axis=1) / outcomes.lengths_n

        return before_signals

    @property
    def kl_in_loss(self) -> bool:
        return self.needs_reference and self.algorithm.kl.placement == "loss"

    @property
    def needs_reference(self) -> bool:
        return self.algorithm.kl.penalises

    def adaptive_coefficient(self) -> AdaptiveCoefficient | None:
        """Returns a KL coefficient at its first value; None if the config has no adaptive one."""
        kl = self.algorithm.kl
        return None if kl.adaptive is None else AdaptiveCoefficient(kl)

    @property
    def needs_old_logprobs(self) -> bool:
        """True if the trainer adds ``rl_old_logprobs`` to a batch.

        With one update per batch, the weights before it are those that the loss sees.
        """
        source = self.algorithm.old_policy
        older = source == "reprefill" and self.max_staleness > 1
        return older or (source != "sampler" and self.updates_per_step > 1)
