"""When to try again what a disk or a network has failed at: pauses that double, within a time."""

from __future__ import annotations

import time

_PAUSE_S = (0.5, 10.0)  # first and longest


class Pauses:
    """The pauses between tries. Whoever tries sleeps, as a thread or as a coroutine.

    Args:
      within_s: time for everything, from now on.
      longest_s: no pause is longer.
    """

    def __init__(self, within_s: float, longest_s: float = _PAUSE_S[1]):
        self._end_s = time.monotonic() + within_s
        self._next_s, self._longest_s = min(_PAUSE_S[0], longest_s), longest_s

    @property
    def over(self) -> bool:
        """Whether the time would have ended before the next try."""
        return time.monotonic() + self._next_s > self._end_s

    def next_s(self) -> float:
        """Seconds until the next try; the pause after it is twice as long."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._longest_s)
        return pause_s
