"""Pauses between retries of disk or network operations, which double within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pauses:
    """The pauses between tries. The caller sleeps, as a thread or as a coroutine.

    Args:
      within_s: time for everything, from now on.
      longest_s: the longest pause.
      first_s: the first pause.
      clock: returns the time in seconds.
    """

    def __init__(
        self,
        within_s: float,
        longest_s: float = 10.0,
        *,
        first_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._clock, self._end_s = clock, clock() + within_s
        self._next_s, self._longest_s = min(first_s, longest_s), longest_s

    @property
    def over(self) -> bool:
        """True if the time would end before the next try."""
        return self._clock() + self._next_s > self._end_s

    def next_s(self) -> float:
        """Returns the seconds until the next try; the pause after it is twice as long."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s
