"""The optional ability of a launcher to have its number of workers follow the load of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


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


@runtime_checkable
class ScalingLauncher(Protocol):
    """A launcher that starts and ends workers as the run needs them.

    Attributes:
      scaling: the rule by which the controller decides on their number.
    """

    @property
    def scaling(self) -> ScalingRule: ...

    def resize(self, workers: int) -> None:
        """Starts or drains workers until there are so many.

        Called on the controller's event loop, after ``start``; must return at once.
        """
        ...
