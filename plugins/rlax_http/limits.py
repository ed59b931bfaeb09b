"""Limits of the rate of requests to a server, and pauses that it asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_PAUSE_S = 300.0  # a server that asks for a year may err
_FIRST_PROBE_S, _BETWEEN_PROBES_S = 1.0, 8.0  # of a pause: at first, and at most


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


class Pause:
    """The time for which a server has asked to be left alone, by every request.

    One answer may be wrong: it may come from a proxy, or concern only the request that it answers.
    So while the pause lasts, single requests are sent as probes, ever more rarely, and a good
    answer to one ends the pause.

    Args:
      clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._until_s = self._begun_s = self._probe_s = self._between_s = 0.0

    def begin(self, seconds: float) -> None:
        """The server asked to be left alone from now on; the longest pause counts."""
        now = self._clock()
        if now >= self._until_s:
            self._between_s = _FIRST_PROBE_S
            self._probe_s = now + self._between_s
        self._begun_s = now
        self._until_s = max(self._until_s, now + min(seconds, _LONGEST_PAUSE_S))

    def wait_s(self) -> float:
        """Seconds to wait before asking for this again; 0: send a request now, maybe as a probe."""
        now = self._clock()
        if now >= self._until_s:
            return 0.0
        if now < self._probe_s:
            return min(self._until_s, self._probe_s) - now
        self._between_s = min(2 * self._between_s, _BETWEEN_PROBES_S)
        self._probe_s = now + self._between_s
        return 0.0

    def answered(self, sent_s: float) -> bool:
        """Ends the pause if a good answer came to a request that was sent after it began.

        Args:
          sent_s: on the clock.

        Returns:
          Whether there was a pause, which is over now.
        """
        if not self._begun_s < sent_s < self._until_s:
            return False
        self._until_s = 0.0
        return True
