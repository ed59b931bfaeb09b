"""The common way to start and end the parts of a command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Self

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.run.start.closing import Closing
from rlax_plugin.run.start.signals import Signals

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
