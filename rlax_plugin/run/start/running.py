"""The common way to start and end the parts of a command."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Self

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.config import Choice
from rlax_plugin.ports.protocols import Tracker
from rlax_plugin.run.start.signals import Signals

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


log = logging.getLogger("rlax.controller")


class Running:
    """An event loop on its own thread, and the parts of a command that live on it.

    At the end of the ``with`` block all started parts are ended, in reverse order. An error in that
    is raised if the block succeeded, and is only logged otherwise.

    Args:
      on_late: see ``Closing``.
      log_name: the file with details on parts that have not ended.

    Attributes:
      supervision: runs the tasks beside the calls.
      closing: receives the cleanup of each part.
      last: ended after all parts, while the loop still runs.
    """

    def __init__(self, signals: Signals, on_late: Callable[[str], object], log_name: str):
        self._signals, self._on_late, self._log_name = signals, on_late, log_name
        self.supervision, self.closing = Supervision(), Closing(on_late)
        self.last = ExitStack()
        self.thread = LoopThread()

    def bring_up[T](self, parts: Coroutine[Any, Any, T], what: str, deadline_s: float) -> T:
        """Starts parts on the loop, in their order; parts that have started are always ended.

        Args:
          what: describes the parts in the message of an expired deadline.
          deadline_s: ``rlax.deadlines.startup_s``.

        Raises:
          RlaxError: a part did not start.
        """
        return self.thread.run(self._own(parts), deadline_s, what, "rlax.deadlines.startup_s")

    async def _own[T](self, parts: Coroutine[Any, Any, T]) -> T:
        self.supervision.watch_loop()
        return await self.supervision.own(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, failed: BaseException | None, at: object) -> None:
        self._signals.ending = True
        try:
            with self.last:
                # It changes nothing about what the command has done, and so not how it ends.
                if not self.thread.run_last(self._close(), self.closing.deadline_s):
                    self._on_late(f"some parts have not ended: {self._log_name} says more")
        except Exception as error:
            if failed is None:
                raise
            log.error("ending what was started has failed, too: %s", error, exc_info=error)
        finally:
            self.thread.close()

    async def _close(self) -> None:
        await self.supervision.close()
        await self.closing.aclose()
