"""A reward that is late as soon as it hangs: no machine is too slow for its deadline."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from rlax_plugin.reward.scoring import Clock, Clocks, Job


def texts_of(job: Job) -> list[str]:
    """What a job shows rewards, or the answer that an environment goes on from."""
    message = job.message(with_prompt=False)
    if "play" in message:
        return [message["play"]["answer"]["text"]]
    return [episode["text"] for episode in message["episodes"]]


class HeldClock(Clock):
    """The time of a job, which is over when a test says so."""

    def __init__(self, job: Job, expired: Callable[[], None]):
        super().__init__(job.limit_s, expired)
        self._tell, self._ended = expired, False

    @property
    def left_s(self) -> float:
        return 0.0 if self._ended else super().left_s

    def expire(self) -> None:
        self._ended = True
        self._tell()


class WatchingClock(HeldClock):
    """Looks for a file while it runs; with a text of its job in it, the time is over.

    Args:
      hanging: the file; it is removed, so that the next one may hang as well.
    """

    def __init__(self, job: Job, expired: Callable[[], None], hanging: Path):
        super().__init__(job, expired)
        self._texts, self._hanging = texts_of(job), hanging

    def go(self, *, timer: bool = True) -> None:
        began = not self.runs
        super().go(timer=timer)
        if began:
            self._look()

    def _look(self) -> None:
        if not self.runs:
            return
        if self._hanging.exists() and self._hanging.read_text() in self._texts:
            self._hanging.unlink()
            self.expire()
        else:
            asyncio.get_running_loop().call_later(0.01, self._look)


def late_at_once(hanging: Path) -> Clocks:
    """For a pool: a job's time is over once code in its process has made ``hanging``."""
    return lambda job, expired: WatchingClock(job, expired, hanging)


def noted(clocks: list[HeldClock]) -> Clocks:
    """For a pool whose jobs are late when a test says so; notes the clocks as jobs begin."""

    def make(job: Job, expired: Callable[[], None]) -> Clock:
        clocks.append(HeldClock(job, expired))
        return clocks[-1]

    return make
