"""The time that code on an event loop goes by: an argument, so that it can pass otherwise."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The time of this machine, which passes by itself."""

    def now_s(self) -> float:
        """Seconds of a clock that never goes back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Returns after so many seconds; with 0 once everything else had its turn."""
        await asyncio.sleep(seconds)
