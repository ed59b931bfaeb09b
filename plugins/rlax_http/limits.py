"""How fast a server may be asked."""

from __future__ import annotations

import time
from collections.abc import Callable


class Rate:
    """Spends at most so much in every minute, spread evenly.

    Args:
      per_minute: None: there is no limit.
      clock: seconds.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic):
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._free_s = clock, 0.0

    def reserve(self, amount: float, latest_s: float) -> float | None:
        """Seconds to wait before spending; None, and nothing is spent, if that would be too late.

        Args:
          latest_s: on the clock.
        """
        if not self._seconds_each:
            return 0.0
        now = self._clock()
        start = max(self._free_s, now)
        if start > latest_s:
            return None
        self._free_s = start + amount * self._seconds_each
        return start - now

    def correct(self, more: float) -> None:
        """So much more was spent than reserved; less if it is negative."""
        self._free_s += more * self._seconds_each


def share(total: float | None, processes: int) -> float | None:
    """Of a limit, what one of several processes has."""
    return None if total is None else total / processes
