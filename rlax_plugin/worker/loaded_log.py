"""A worker's log of loaded weights: few lines, even if versions follow each other fast."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger("rlax.worker")

PAUSE_S = 5.0


class LoadedLog:
    """Logs the version in use: the first at once, and then the newest at most once per pause.

    Args:
      pause_s: least time between two lines.
    """

    def __init__(self, pause_s: float = PAUSE_S):
        self._pause_s = pause_s
        self._newest = self._count = 0  # not logged so far
        self._pause: asyncio.TimerHandle | None = None

    def add(self, version: int) -> None:
        """Takes a version that was loaded. Called on an event loop."""
        self._newest, self._count = version, self._count + 1
        if self._pause is None:
            self._tell()

    def flush(self) -> None:
        """Logs what waits for the end of the pause, and forgets the pause."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._say()

    def _tell(self) -> None:
        self._pause = None
        if self._count:
            self._say()
            self._pause = asyncio.get_running_loop().call_later(self._pause_s, self._tell)

    def _say(self) -> None:
        if self._count == 1:
            log.info("serving version %d", self._newest)
        elif self._count:
            since = "versions since the last line"
            log.info("serving version %d (%d %s)", self._newest, self._count, since)
        self._count = 0
