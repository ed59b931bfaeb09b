"""Limits the rate of requests to a server, and keeps the pauses that the server asks for."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_PAUSE_S = 300.0  # a server that asks for a year may err
_FIRST_PROBE_S, _BETWEEN_PROBES_S = 1.0, 8.0  # of a pause: at first, and at most


class Rate:
    """Spends at most a given amount in every minute, spread evenly.

    Args:
      per_minute: the amount; None: there is no limit.
      clock: returns seconds.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float] = time.monotonic):
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._clock, self._free_s = clock, 0.0

    def reserve(self, amount: float, latest_s: float) -> float | None:
        """Returns seconds to wait before spending; None if too late, and then nothing is spent.

        Args:
          amount: the amount to spend.
          latest_s: latest time on the clock.
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
        """Corrects a reservation by the amount spent beyond it; negative if less was spent."""
        self._free_s += more * self._seconds_each


def share(total: float | None, processes: int) -> float | None:
    """Returns the part of a limit for one of several processes."""
    return None if total is None else total / processes


class Pause:
    """A pause in all requests that a server has asked for.

    One answer may be wrong: it may come from a proxy, or concern only its own request. So while the
    pause lasts, single requests are sent as probes, ever more rarely, and a good answer to one ends
    the pause.

    Args:
      clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._until_s = self._begun_s = self._probe_s = self._between_s = 0.0

    def begin(self, seconds: float) -> None:
        """Starts a pause from now on; of several pauses the longest applies."""
        now = self._clock()
        if now >= self._until_s:
            self._between_s = _FIRST_PROBE_S
            self._probe_s = now + self._between_s
        self._begun_s = now
        self._until_s = max(self._until_s, now + min(seconds, _LONGEST_PAUSE_S))

    def wait_s(self) -> float:
        """Returns seconds to wait before the next call; 0: send a request now, maybe as a probe."""
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
          sent_s: time on the clock when the request was sent.

        Returns:
          True if this ended a pause.
        """
        if not self._begun_s < sent_s < self._until_s:
            return False
        self._until_s = 0.0
        return True
