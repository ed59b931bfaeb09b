"""The end of a run or an evaluation: each started part is ended under its own deadline.

A part that does not end in time is left behind, with a warning: all results are on disk by then, so
this is no failure of the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.config import Choice
from rlax_plugin.ports.protocols import Tracker

log = logging.getLogger("rlax.controller")

PART_S = 60.0  # for a part that does not say how long it may take
_REST_S = 60.0  # for all that has no deadline here: it neither waits nor writes much


class Closing:
    """Ends the started parts in reverse order; all are ended even if one raises an error.

    Args:
      on_late: called with a sentence on each part that was left behind, or has lost data.

    Attributes:
      deadline_s: the most that ``aclose`` may take, if every part uses up its deadline.
    """

    def __init__(self, on_late: Callable[[str], object]) -> None:
        self._on_late = on_late
        self._parts: list[AsyncExitStack] = []
        self.deadline_s = _REST_S

    def part(self) -> AsyncExitStack:
        """Returns a stack for the cleanup of the next part, which has no deadline of its own."""
        self._parts.append(AsyncExitStack())
        return self._parts[-1]

    async def aclose(self) -> None:
        """Ends all parts.

        Raises:
          BaseException: the first error; the log has the others.
        """
        errors: list[BaseException] = []
        while self._parts:
            try:
                await self._parts.pop().aclose()
            except BaseException as error:
                if errors:
                    log.error("a further part has failed to end: %s", error, exc_info=error)
                errors.append(error)
        for error in errors:
            raise error

    def ends(
        self, what: str, key: str, end: Callable[[], Awaitable[object]], deadline_s: float = PART_S
    ) -> None:
        """Has ``aclose`` end a part, and wait for it no longer than its deadline.

        Args:
          what: the part, as the subject of a sentence.
          key: of the config, to name if it is late.
        """
        self.deadline_s += deadline_s
        self.part().push_async_callback(self._end, what, key, end, deadline_s)

    def ends_trackers(
        self, trackers: Sequence[Tracker], choices: Sequence[Choice], deadline_s: float
    ) -> None:
        """Has ``aclose`` close trackers concurrently, and report the data that each has lost.

        Args:
          trackers: may still be extended after this call; those of the config come first.
          choices: of the config.
          deadline_s: for all of them together, ``rlax.deadlines.close_s``.
        """
        self.deadline_s += deadline_s
        self.part().push_async_callback(self._close_trackers, trackers, choices, deadline_s)

    async def _close_trackers(
        self, trackers: Sequence[Tracker], choices: Sequence[Choice], deadline_s: float
    ) -> None:
        names = [f"tracker {c.name} (rlax.trackers.{i})" for i, c in enumerate(choices)]
        names += ["the page for Prometheus"] * (len(trackers) - len(names))
        closing = {
            asyncio.wrap_future(on_daemon(tracker.close, f"close {name}")): name
            for name, tracker in zip(names, trackers, strict=False)
        }
        if not closing:
            return
        ended, late = await asyncio.wait(closing, timeout=deadline_s)
        for name in sorted(closing[tracker] for tracker in late):
            self._on_late(
                f"{name} did not close within {deadline_s:g} s (rlax.deadlines.close_s) and may "
                "lack the last steps: metrics.jsonl and evaluation/ have everything"
            )
        errors = [error for tracker in ended if (error := tracker.exception()) is not None]
        for tracker in ended:
            if tracker.exception() is None and (lost := tracker.result()) is not None:
                self._on_late(lost)
        for error in errors:
            raise error

    async def _end(
        self, what: str, key: str, end: Callable[[], Awaitable[object]], deadline_s: float
    ) -> None:
        ending = asyncio.ensure_future(end())
        if (await asyncio.wait({ending}, timeout=deadline_s))[1]:
            ending.cancel()
            self._on_late(f"{what} did not end within {deadline_s:g} s ({key}): it was abandoned")
        else:
            ending.result()
