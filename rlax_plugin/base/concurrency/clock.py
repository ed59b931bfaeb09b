"""A clock for code on an event loop, passed as an argument so that tests can replace it."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The clock of this machine."""

    def now_s(self) -> float:
        """Returns the seconds of a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Returns after the given seconds; with 0 after all other tasks had their turn."""
        await asyncio.sleep(seconds)
