"""The common way to start and end the parts of a command, with its handling of signals."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any, Self

from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.concurrency.supervision import Supervision
from rlax_plugin.start.closing import Closing

log = logging.getLogger("rlax.controller")

_SAME_S = 1.0
"""Linux sends the signal for a dead parent once for each of the parent's threads."""


class Signals:
    """Makes SIGTERM act like Ctrl-C, within ``with``; several in a row count as one.

    Args:
      stop: returns True if the command will stop by itself, which avoids an interrupt.
      more: signals that act alike, unless they are ignored.

    Attributes:
      ending: True while parts are being ended, which has a deadline. Signals are ignored then,
        because an interrupt would leave processes behind.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False, *more: signal.Signals):
        self._stop = stop
        # What is ignored stays so, as SIGHUP under nohup. But shells ignore SIGINT in what they
        # start in the background, and whoever sends it there means it.
        ignored = [one for one in more if signal.getsignal(one) is signal.SIG_IGN]
        self._numbers = {signal.SIGINT, signal.SIGTERM, *more}.difference(ignored)
        self.ending = False
        self._previous: dict[signal.Signals, Any] = {}
        self._terminated_s = -math.inf

    def _take(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            before_s, self._terminated_s = self._terminated_s, time.monotonic()
            if self._terminated_s - before_s < _SAME_S:
                return
        if not self.ending and not self._stop():
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        for number in self._numbers:
            self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


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
