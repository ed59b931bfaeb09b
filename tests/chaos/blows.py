"""The blows that a seed deals to a run: which process or fault, of which kind, at which event.

Events are the fault points of ``base.files.faults``. The processes of a run append the name of each
that they reach to a file, which ``EventLog`` follows.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from rlax_plugin.base.files.faults import FaultPoint
from rlax_plugin.base.liveness.marks import Role

Fault = Literal["network", "store"]
Target = Role | Fault
OfProcesses = Literal["kill", "freeze"]
OfNetwork = Literal["delay", "stall", "reset", "half-open"]
OfStore = Literal["slow", "faulty", "slow and faulty", "hang"]
Kind = OfProcesses | OfNetwork | OfStore

KINDS: dict[Target, tuple[Kind, ...]] = {
    "network": ("delay", "stall", "reset", "half-open"),
    "store": ("slow", "faulty", "slow and faulty", "hang"),
}
AT_ONCE: tuple[Kind, ...] = ("kill", "reset")
"""Kinds that do not last."""

_WORDS: dict[Kind, str] = {
    "kill": "SIGKILL",
    "freeze": "SIGSTOP for {:.1f} s",
    "delay": "200 to 300 ms of delay for {:.1f} s",
    "stall": "no byte passes for {:.1f} s",
    "reset": "all connections are reset",
    "half-open": "all connections are half-open",
    "slow": "each call takes 200 ms longer for {:.1f} s",
    "faulty": "one call in twenty fails for {:.1f} s",
    "slow and faulty": "each call takes 200 ms longer and one in twenty fails for {:.1f} s",
    "hang": "no writing and no reading returns for {:.1f} s",
}

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

OF_TESTING = (FaultPoint.STEP_TRAINED, FaultPoint.CHECKPOINT_WRITTEN)
"""Fault points that only the trainer of ``rlax_plugin.testing`` announces."""
STEP_ENDED = FaultPoint.METRICS_WRITTEN
"""The end of a step, which every run announces."""

_LOOK_S = 0.005
_MOST_TIMES = 3
_FOR_S, _OF_STORE_S = (0.5, 4.0), (2.5, 6.0)
_FROZEN = 0.3  # share of the blows on processes


@dataclass(frozen=True, slots=True)
class Blow:
    """One blow.

    Attributes:
      target: role of the process that is hit, one of several is chosen by ``choice``; or a fault.
      kind: SIGKILL, or SIGSTOP and then SIGCONT; or the kind of a fault.
      event: the fault point at which it falls, when it is reached for the ``times``-th time after
        the blow before has ended.
      choice: number from 0 to 1.
      for_s: duration of a freeze or a fault.
    """

    target: Target
    kind: Kind
    event: FaultPoint
    times: int
    choice: float
    for_s: float

    @property
    def moment(self) -> str:
        """The moment of the run in words."""
        return next(name for name, points in EVENTS.items() if self.event in points)

    def __str__(self) -> str:
        return f"{self.target}: {_WORDS[self.kind].format(self.for_s)} at {self.event}:{self.times}"


def blows(
    seed: int,
    count: int,
    targets: Sequence[Target],
    events: Mapping[str, Sequence[FaultPoint]] = MappingProxyType(EVENTS),
) -> list[Blow]:
    """Returns the blows of a seed: the same for the same arguments.

    Args:
      targets: may be hit; one that is listed twice is hit twice as often.
      events: those of ``EVENTS`` at which blows may fall.
    """
    chance = random.Random(f"rlax chaos {seed}")
    drawn = []
    for _ in range(count):
        target, moment = chance.choice(targets), chance.choice(tuple(events))
        drawn.append(
            Blow(
                target=target,
                kind=_kind(target, chance.random()),
                event=chance.choice(events[moment]),
                times=1 if moment == "at a restore" else chance.randint(1, _MOST_TIMES),
                choice=chance.random(),
                for_s=chance.uniform(*(_OF_STORE_S if target == "store" else _FOR_S)),
            )
        )
    return drawn


def _kind(target: Target, choice: float) -> Kind:
    if (kinds := KINDS.get(target)) is not None:
        return kinds[int(choice * len(kinds))]
    return "freeze" if choice < _FROZEN else "kill"


class EventLog:
    """The fault points that were reached, in their order.

    Args:
      path: of the file; it need not exist yet.
    """

    def __init__(self, path: Path):
        self.path, self._at, self._rest = path, 0, ""

    def take(self) -> list[str]:
        """Returns the names of the points that were reached since the last call."""
        try:
            with self.path.open() as file:
                file.seek(self._at)
                text = file.read()
        except FileNotFoundError:
            return []
        self._at += len(text.encode())
        *lines, self._rest = (self._rest + text).split("\n")
        return lines

    def wait(
        self, point: FaultPoint, times: int, within_s: float, goes_on: Callable[[], bool]
    ) -> bool:
        """Waits until a point is reached for the n-th time from now on.

        Args:
          goes_on: returns False if nothing more can be reached.

        Returns:
          True if it was; False if ``within_s`` or the run ended first.
        """
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            alive = goes_on()
            times -= self.take().count(point)
            if times <= 0:
                return True
            if not alive:
                return False
            time.sleep(_LOOK_S)
        return False
