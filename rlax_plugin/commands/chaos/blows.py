"""The blows that a seed deals to a run: which process, which signal, at which event."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlax_plugin.liveness.marks import Role
from rlax_plugin.records.faults import FaultPoint

Kind = Literal["kill", "freeze"]

AT_A_RESTORE = (FaultPoint.METRICS_CUT, FaultPoint.RECOVERED)
"""Events of a trainer that is started again: it is killed first."""

EVENTS: dict[str, tuple[FaultPoint, ...]] = {
    "training": (FaultPoint.STEP_TRAINED, FaultPoint.METRICS_WRITTEN),
    "in a commit": (
        FaultPoint.COMMIT_BEGUN,
        FaultPoint.SAMPLES_WRITTEN,
        FaultPoint.SEGMENT_WRITTEN,
        FaultPoint.COMMIT_ENDED,
        FaultPoint.LEDGER_WRITTEN,
    ),
    "in a publication": (
        FaultPoint.WEIGHTS_LISTED,
        FaultPoint.WEIGHTS_WRITTEN,
        FaultPoint.WEIGHTS_PUBLISHED,
        FaultPoint.WEIGHTS_RETIRED,
    ),
    "in a snapshot": (FaultPoint.SNAPSHOT_BEGUN, FaultPoint.SNAPSHOT_WRITTEN),
    "after a checkpoint": (FaultPoint.CHECKPOINT_WRITTEN,),
    "at a restore": AT_A_RESTORE,
    "between turns": (FaultPoint.TURN_SAMPLED,),
    "in an evaluation": (FaultPoint.EVALUATION_BEGUN, FaultPoint.EVALUATION_WRITTEN),
    "between pilots and the rest": (FaultPoint.PILOTS_SCORED,),
}
"""Moments of a run, each with the fault points that stand for it."""

_MOST_TIMES = 3
_FREEZE_S = (0.5, 4.0)


@dataclass(frozen=True, slots=True)
class Blow:
    """One blow.

    Attributes:
      role: of the process that is hit; one of several is chosen by ``choice``.
      kind: SIGKILL, or SIGSTOP for ``freeze_s`` and then SIGCONT.
      event: the fault point at which it falls, when it is reached for the ``times``-th time after
        the blow before has ended.
      choice: number from 0 to 1.
    """

    role: Role
    kind: Kind
    event: FaultPoint
    times: int
    choice: float
    freeze_s: float

    @property
    def moment(self) -> str:
        """The moment of the run in words."""
        return next(name for name, points in EVENTS.items() if self.event in points)

    def __str__(self) -> str:
        what = "SIGKILL" if self.kind == "kill" else f"SIGSTOP for {self.freeze_s:.1f} s"
        return f"{self.role}: {what} at {self.event}:{self.times}"


def blows(
    seed: int, count: int, roles: Sequence[Role], moments: Sequence[str] = tuple(EVENTS)
) -> list[Blow]:
    """Returns the blows of a seed: the same for the same arguments.

    Args:
      roles: processes that may be hit; a role that is listed twice is hit twice as often.
      moments: keys of ``EVENTS`` at which blows may fall.
    """
    chance = random.Random(f"rlax chaos {seed}")
    found = []
    for _ in range(count):
        role, moment = chance.choice(roles), chance.choice(moments)
        found.append(
            Blow(
                role=role,
                kind="freeze" if chance.random() < 0.3 else "kill",
                event=chance.choice(EVENTS[moment]),
                times=1 if moment == "at a restore" else chance.randint(1, _MOST_TIMES),
                choice=chance.random(),
                freeze_s=chance.uniform(*_FREEZE_S),
            )
        )
    return found
