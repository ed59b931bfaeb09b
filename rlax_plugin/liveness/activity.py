"""The activity of one thread, which other threads may read at any time."""

from __future__ import annotations

import time

from rlax_plugin.liveness.run_status import Doing, shown


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
