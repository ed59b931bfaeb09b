"""Decides how many workers a run needs, from its load: a pure function with hysteresis.

A further worker helps only if the trainer waits for samples, and then more samples are under way
than the workers have slots. A worker is spare if the others would have slots enough twice over. A
decision needs a whole window of load since the last one. The two thresholds differ by a factor of
two, so load that varies by less than a third around its mean never leads to a change and back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlax_plugin.ports.scaling import ScalingRule

_SPARE = 0.5  # of the slots of the other workers: so many are taken if a worker is spare
_HARDLY = 0.25  # of ``ScalingRule.waits``: the trainer hardly waits below that share


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of a run's workers since the load before it.

    Attributes:
      seconds: length of that time.
      waited_s: seconds of it in which the trainer, or an evaluation, waited for samples.
      samples: samples that are being generated or wait for a worker, at its end.
      workers: workers that hold weights and take groups, at its end.
      slots: sequences that these decode at once, all together.
    """

    seconds: float
    waited_s: float
    samples: int
    workers: int
    slots: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A number of workers that a fleet should have, and the reason, in words."""

    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Window:
    """The newest loads of a length of time.

    Attributes:
      waited: share of the time in which the trainer waited.
      demand: mean number of samples under way: over the time in which the trainer waited, if that
        is long enough to matter, because only then samples are missing; else over all of it.
    """

    seconds: float
    waited: float
    demand: float

    @classmethod
    def of(cls, loads: Sequence[FleetLoad], least_s: float, waits: float) -> _Window | None:
        """Returns the window of at least ``least_s``; None if there are not so many loads."""
        seconds, first = 0.0, len(loads)
        while first and seconds < least_s:
            first -= 1
            seconds += loads[first].seconds
        if seconds < least_s or not seconds:
            return None
        chosen = loads[first:]
        waited_s = sum(load.waited_s for load in chosen)
        matters = waited_s > _HARDLY * waits * seconds
        weights = [load.waited_s if matters else load.seconds for load in chosen]
        demand = sum(w * load.samples for w, load in zip(weights, chosen, strict=True))
        return cls(seconds, waited_s / seconds, demand / sum(weights))


def decide(rule: ScalingRule, wanted: int, loads: Sequence[FleetLoad]) -> Decision | None:
    """Returns the number of workers that a fleet should have instead of ``wanted``; None: as it is.

    Args:
      loads: those since the last decision, oldest first.
    """
    if not rule.least <= wanted <= rule.most:
        return Decision(min(max(wanted, rule.least), rule.most), "the limits of its pools")
    if not loads or not loads[-1].workers or loads[-1].slots <= 0:
        return None
    per_worker = loads[-1].slots / loads[-1].workers
    return _more(rule, wanted, loads, per_worker) or _fewer(rule, wanted, loads, per_worker)


def _more(
    rule: ScalingRule, wanted: int, loads: Sequence[FleetLoad], per_worker: float
) -> Decision | None:
    window = _Window.of(loads, rule.up_s, rule.waits)
    # Those that are still starting may be enough.
    if window is None or wanted == rule.most or loads[-1].workers < wanted:
        return None
    if window.waited < rule.waits or window.demand <= wanted * per_worker:
        return None
    enough = math.ceil(window.demand / per_worker)
    return Decision(
        min(enough, 2 * wanted, rule.most),
        f"the trainer waited for samples {window.waited:.0%} of the last {window.seconds:.0f} s, "
        f"while {window.demand:.0f} samples were under way for {wanted * per_worker:.0f} slots",
    )


def _fewer(
    rule: ScalingRule, wanted: int, loads: Sequence[FleetLoad], per_worker: float
) -> Decision | None:
    window = _Window.of(loads, rule.down_s, rule.waits)
    if window is None or wanted == rule.least:
        return None
    if window.demand > _SPARE * (wanted - 1) * per_worker:
        return None
    return Decision(
        wanted - 1,
        f"in the last {window.seconds:.0f} s {window.demand:.0f} samples were under way for "
        f"{wanted * per_worker:.0f} slots, and the trainer waited {window.waited:.0%} of the time",
    )


class Scaler:
    """The number of workers that a fleet should have, as its load goes on.

    Attributes:
      wanted: the number at present.
    """

    def __init__(self, rule: ScalingRule):
        self._rule, self.wanted = rule, rule.least
        self._loads: list[FleetLoad] = []

    def add(self, load: FleetLoad) -> Decision | None:
        """Takes the load since the last call; returns a decision, if it has changed ``wanted``."""
        rule = self._rule
        self._loads.append(load)
        decision = decide(rule, self.wanted, self._loads)
        if decision is not None:
            self.wanted = decision.workers
            self._loads.clear()
        longest_s = max(rule.up_s, rule.down_s)
        while sum(one.seconds for one in self._loads[1:]) > longest_s:
            del self._loads[0]
        return decision
