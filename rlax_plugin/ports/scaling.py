"""The rule by which the number of a launcher's workers follows the load of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """The limits of a number of workers, and how quickly it follows the load.

    Attributes:
      least, most: limits of the number of workers; the run begins with ``least``.
      up_s, down_s: seconds of load that a decision for more or fewer workers needs.
      waits: share of the time; workers are added only if the trainer waits at least so long.
    """

    least: int
    most: int
    up_s: float
    down_s: float
    waits: float
