"""A thread that notices when an activity of its process stands still, and writes all stacks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rlax_plugin.base.liveness.marks import Announced, Role, announced
from rlax_plugin.base.liveness.own_stacks import write_stacks

log = logging.getLogger("rlax.watchdog")

STILL_S = 10.0
"""Seconds after which an activity that should move all the time stands still."""

_TICK_S = 1.0
_GROWTH = 4  # the stacks are written again after so many times the seconds


@dataclass(slots=True, eq=False)
class _Watched:
    """An activity.

    Attributes:
      still_s: returns the seconds since it moved last.
      limit_s: it stands still after so many.
      next_s: its stacks are written when it has stood still for so long.
      since: Unix time at which it moved last; 0: it moves.
    """

    what: str
    still_s: Callable[[], float]
    limit_s: float
    next_s: float
    since: float = 0.0


class Watchdog:
    """Watches activities of this process, on a thread of its own, within ``with``.

    Args:
      announced: the mark of this process, which also has the file of stacks; None: the stacks go to
        standard error.
      limit_s: seconds after which an activity stands still.
    """

    def __init__(self, announced: Announced | None, limit_s: float = STILL_S):
        self._announced, self._limit_s = announced, limit_s
        self._watched: list[_Watched] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlax-watchdog", daemon=True)

    def watch(self, what: str, still_s: Callable[[], float], limit_s: float | None = None) -> None:
        """Watches an activity.

        Args:
          what: the activity in words.
          still_s: returns the seconds since it moved last; called on the watchdog's thread.
          limit_s: seconds after which it stands still; None: those of the watchdog.
        """
        limit_s = self._limit_s if limit_s is None else limit_s
        self._watched.append(_Watched(what, still_s, limit_s, limit_s))

    def watch_loop(self, what: str, loop: asyncio.AbstractEventLoop) -> None:
        """Watches an event loop: it stands still if it runs no callback."""
        beat = _LoopBeat(loop)
        self.watch(what, beat.still_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(2 * _TICK_S)

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._ended.wait(_TICK_S):
            paused_s, before_s = time.monotonic() - before_s - _TICK_S, time.monotonic()
            if paused_s > self._limit_s / 2:
                # The whole process stood still, or Python in it. The activities move again first.
                log.warning("this process did not run for %.0f s", paused_s)
                for one in self._watched:
                    with contextlib.suppress(Exception):
                        one.still_s()
                continue
            self._look()

    def _look(self) -> None:
        for one in self._watched:
            try:
                still_s = one.still_s()
            except Exception:  # it is a part's, such as an engine's health; the others go on
                log.exception("%s cannot be watched", one.what)
                self._watched.remove(one)
                return
            if still_s <= one.limit_s:
                if one.since:
                    log.warning("%s moves again, after %.0f s", one.what, time.time() - one.since)
                    one.since, one.next_s = 0.0, one.limit_s
                continue
            if not one.since:
                one.since = time.time() - still_s
            if still_s > one.next_s:
                one.next_s = still_s * _GROWTH
                self._write_stacks(f"{one.what} stands still since {still_s:.0f} s")
        if self._announced is not None:
            now = tuple((one.what, one.since) for one in self._watched if one.since)
            self._announced.note(now)

    def _write_stacks(self, why: str) -> None:
        # Before the line in the log: the thread that stands still may hold the lock of the log.
        if self._announced is None:
            write_stacks(why, 2, empties=False)
            log.warning("%s: see the stacks", why)
        else:
            write_stacks(why, self._announced.stacks.fileno())
            log.warning("%s: see the stacks of %s", why, self._announced.mark.stacks)


async def watched(state_dir: Path, role: Role, work: Awaitable[None]) -> None:
    """Awaits work on an event loop that is watched meanwhile, in a process with this role."""
    with announced(state_dir, role) as mark, Watchdog(mark) as watchdog:
        watchdog.watch_loop(f"the event loop of the {role}", asyncio.get_running_loop())
        await work


class _LoopBeat:
    """The beat of an event loop: each question has the loop answer, soon if it runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._answered_s = time.monotonic()
        self._asked = False

    def _answer(self) -> None:
        self._answered_s, self._asked = time.monotonic(), False

    def still_s(self) -> float:
        """Returns the seconds since the loop answered last; 0 once it is closed."""
        if not self._asked:
            self._asked = True
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return 0.0
        return time.monotonic() - self._answered_s
