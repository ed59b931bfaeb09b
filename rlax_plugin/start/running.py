"""One way up and down for every command that starts something: parts, signals, and the end."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Self

from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.start.closing import Closing

log = logging.getLogger("rlax.controller")


class Signals:
    """SIGTERM does what Ctrl-C does; within ``with``.

    Args:
      stop: returns whether the command will stop by itself, so that it need not be interrupted.

    Attributes:
      ending: what was started is being ended, which has a deadline. A signal changes nothing any
        more: it would leave processes behind.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False):
        self._stop = stop
        self.ending = False
        self._previous: dict[signal.Signals, Any] = {}

    def _take(self, number: int, frame: object) -> None:
        if not self.ending and not self._stop():
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Running:
    """An event loop on a thread of its own, and the parts of a command that live on it.

    Behind the ``with`` everything that was started is ended, last things first. An error in ending
    it is raised if nothing had failed before, and is only logged otherwise.

    Args:
      on_late: see ``Closing``.
      log_name: the file that says more of what has not ended.

    Attributes:
      supervision: runs what goes on beside the calls.
      closing: gets what ends each part.
      last: what is ended behind all parts, while the loop still runs.
    """

    def __init__(self, signals: Signals, on_late: Callable[[str], object], log_name: str):
        self._signals, self._on_late, self._log_name = signals, on_late, log_name
        self.supervision, self.closing = Supervision(), Closing(on_late)
        self.last = ExitStack()
        self.thread = LoopThread()

    def bring_up[T](self, parts: Coroutine[Any, Any, T], what: str, deadline_s: float) -> T:
        """Starts parts on the loop, in their order; what has come up is ended, whatever happens.

        Args:
          what: is waited for.
          deadline_s: ``rlax.deadlines.startup_s``.

        Raises:
          RlaxError: something did not start.
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
