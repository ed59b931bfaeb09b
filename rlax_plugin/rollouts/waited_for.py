"""Requests that a task on an event loop waits for, while the engine's thread generates them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from rlax_plugin.rollouts.jobs import Job
from rlax_plugin.types import Key, Request, Sampled


class WaitedFor:
    """Turns requests into jobs that report to the running event loop.

    Args:
      on_reply: called on the loop with each request that is complete, or reports on its way.

    Attributes:
      jobs: one per request, abandoned once ``ended`` is done.
      ended: done once all are complete, or with the first error, also one of ``on_group``.
    """

    def __init__(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ):
        self._loop = asyncio.get_running_loop()
        self._on_reply, self._left = on_reply, len(requests)
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.jobs = [
            Job(
                request,
                deliver=functools.partial(self._on_loop, self._tell, True, request.key),
                report=functools.partial(self._on_loop, self._tell, False, request.key),
                fail=functools.partial(self._on_loop, self._fail),
                abandoned=self.ended.done,
            )
            for request in requests
        ]

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell(self, ends: bool, key: Key, samples: list[Sampled]) -> None:
        if self.ended.done():
            return
        try:
            self._on_reply(key, samples)
        except Exception as error:  # noqa: BLE001 - raised by generate
            self.ended.set_exception(error)
            return
        self._left -= ends
        if self._left == 0:
            self.ended.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)
