"""The activity of one thread and its failed attempts; other threads may read both at any time."""

from __future__ import annotations

import time
from collections import deque

from rlax_plugin.base.liveness.run_status import Doing, FailedAttempts, shown

_RECENT_S = 60.0
_MOST = 1000  # attempts that are counted


def ends_at(key: str, seconds: float, what: str = "") -> str:
    """Returns the end of a line about a wait, which names its deadline."""
    return f"{key} = {seconds:g} s{what} ends this wait"


class Activity:
    """Says what a thread does at present. The newest word replaces the one before as a whole."""

    def __init__(self) -> None:
        self._now: tuple[str, float, str] | None = None

    def begins(self, what: str, ends: str = "") -> None:
        """Notes what begins now.

        Args:
          ends: the deadline that ends it, in words; empty: none.
        """
        self._now = what, time.time(), ends

    def goes_on(self, what: str) -> None:
        """Replaces the words for what is being done, which goes on since the same moment."""
        if (now := self._now) is not None:
            self._now = what, *now[1:]

    def ends(self) -> None:
        """Notes that nothing is being done."""
        self._now = None

    @property
    def doing(self) -> Doing | None:
        """The present activity; None: there is none."""
        if (now := self._now) is None:
            return None
        what, since, ends = now
        return Doing(what=shown(what), since=since, ends=shown(ends))


class Failures:
    """Counts the attempts of the last minute that failed."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=_MOST)
        self._newest = "", 0.0

    def failed(self, what: str, times: int = 1) -> None:
        """Notes an attempt that has failed just now.

        Args:
          what: the attempt, with its error.
          times: number of such attempts.
        """
        self._newest = what, time.time()
        self._at_s.extend([time.monotonic()] * min(times, _MOST))

    @property
    def count(self) -> int:
        """Number of failed attempts in the last minute."""
        since_s = time.monotonic() - _RECENT_S
        return sum(at_s > since_s for at_s in tuple(self._at_s))

    @property
    def recent(self) -> FailedAttempts | None:
        """The failed attempts of the last minute; None if there are none."""
        if not (count := self.count):
            return None
        what, at = self._newest
        return FailedAttempts(what=shown(what), at=at, count=count)
