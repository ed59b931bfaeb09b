"""Engine ``scripted``, step by step: what happens between two of them is the test's."""

from __future__ import annotations

import asyncio

from rlax_plugin.base.concurrency.clock import Clock


class Steps(Clock):
    """An engine's clock: behind each decode step, where it sleeps, it waits to be let on.

    Args:
      allowed: so many steps may pass at once.
    """

    def __init__(self, allowed: int = 0) -> None:
        self._allowed, self._free = asyncio.Semaphore(allowed), False

    async def sleep(self, seconds: float) -> None:
        if seconds and not self._free:
            await self._allowed.acquire()
        else:
            await asyncio.sleep(0)

    def one_more(self) -> None:
        self._allowed.release()

    def go_on(self) -> None:
        """For one group that waits, and all that come later."""
        self._free = True
        self._allowed.release()
