"""Follows the file to which the processes of a run append the fault points that they reach."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rlax_plugin.records.faults import FaultPoint

_LOOK_S = 0.005


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
