"""The arrangements of a plan in the order of their predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.commands.plan.arrangement import Arrangement
from rlax_plugin.commands.plan.model import Predicted, StepModel
from rlax_plugin.commands.plan.observed import Observed


@dataclass(frozen=True, slots=True)
class Plan:
    """A fitted model and its predictions.

    Attributes:
      now: the prediction for the config as it is.
      ranked: all arrangements that fit into the memory, the fastest first.
      too_large: number of those that do not.
      rows: see ``given``.
      least_bytes: memory of the smallest arrangement.
      left_out: the reasons why usual limits of staleness are not compared.
    """

    model: StepModel
    measured: tuple[Observed, ...]
    now: Predicted
    ranked: tuple[Predicted, ...]
    too_large: int
    rows: int
    least_bytes: float
    left_out: tuple[str, ...] = ()

    def best(self, staleness: tuple[int, int]) -> Predicted | None:
        """Returns the fastest arrangement with a pair (j, k)."""
        same = (one for one in self.ranked if one.arrangement.staleness == staleness)
        return next(same, None)


def plan(
    model: StepModel,
    measured: Sequence[Observed],
    base: Arrangement,
    among: Sequence[Arrangement],
    memory_bytes: float,
    rows: int,
    left_out: Sequence[str] = (),
) -> Plan:
    """Ranks arrangements by their predicted time of a step.

    Of two that take the same time, the one with less memory comes first.
    """
    each = [model.predict(one) for one in among]
    fit = [one for one in each if one.bytes <= memory_bytes]
    ranked = sorted(fit, key=lambda one: (one.step_s, one.bytes, one.arrangement))
    return Plan(
        model,
        tuple(measured),
        model.predict(base),
        tuple(ranked),
        len(each) - len(fit),
        rows,
        min(one.bytes for one in each),
        tuple(left_out),
    )
