"""Waiting on an event loop for something that other code changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes coroutines that wait for a condition; used on one event loop."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        """Has all waiting coroutines look at their condition again."""
        self._event.set()
        self._event = asyncio.Event()

    async def until[T](self, look: Callable[[], T | None], within_s: float) -> T | None:
        """Returns what ``look`` returns as soon as this is not None; None after ``within_s``."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while (found := look()) is None:
            if (left_s := end_s - loop.time()) <= 0:
                return None
            try:
                await asyncio.wait_for(self._event.wait(), left_s)
            except TimeoutError:
                return look()
        return found
