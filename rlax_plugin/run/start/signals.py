"""Signals that end a command: they act like Ctrl-C."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from typing import Any, Self

# Linux sends the signal for a dead parent once for each of its threads, and both a terminal that is
# closed and its shell send SIGHUP.
_SAME_S = 1.0

_MORE = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM)


def ending_signals() -> set[signal.Signals]:
    """Returns the signals that end a command.

    One that is ignored stays so, as SIGHUP under nohup. SIGINT is an exception: shells ignore it in
    what they start in the background, where it is only sent on purpose.
    """
    return {signal.SIGINT} | {n for n in _MORE if signal.getsignal(n) is not signal.SIG_IGN}


class Signals:
    """Makes the signals that end a command act like Ctrl-C, within ``with``.

    Several in a row count as one, but for Ctrl-C.

    Args:
      stop: returns True if the command will stop by itself, which avoids an interrupt.

    Attributes:
      ending: True while parts are being ended, which has a deadline. Signals are ignored then,
        because an interrupt would leave processes behind.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False):
        self._stop = stop
        self.ending = False
        self._previous: dict[signal.Signals, Any] = {}
        self._terminated_s = -math.inf

    def _take(self, number: int, frame: object) -> None:
        if number != signal.SIGINT:
            before_s, self._terminated_s = self._terminated_s, time.monotonic()
            if self._terminated_s - before_s < _SAME_S:
                return
        if not self.ending and not self._stop():
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        for number in ending_signals():
            self._previous[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
