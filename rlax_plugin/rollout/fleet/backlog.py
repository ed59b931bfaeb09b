"""The load of a run's workers: samples under way, and the time that is spent waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlax_plugin.base.concurrency.clock import Clock
from rlax_plugin.ports.protocols import Launcher
from rlax_plugin.rollout.fleet.fleet import Worker
from rlax_plugin.rollout.fleet.scaling import Decision, FleetLoad, Scaler


class Backlog:
    """Counts samples from the request to the answer, and the seconds that they are waited for.

    Attributes:
      samples: that are being generated or wait for a worker.
    """

    def __init__(self, clock: Clock | None = None):
        self._clock = clock or Clock()
        self.samples = 0
        self._waited_s, self._waiting = 0.0, 0
        self._counted_to_s = self._since_s = self._clock.now_s()

    def watch(self, samples: int, done: asyncio.Future[Any]) -> None:
        """Counts the samples of a request until its future is done."""
        self.samples += samples

        def answered(_: object) -> None:
            self.samples -= samples

        done.add_done_callback(answered)

    def _count(self) -> float:
        now = self._clock.now_s()
        self._waited_s += (now - self._counted_to_s) * (self._waiting > 0)
        self._counted_to_s = now
        return now

    @contextlib.contextmanager
    def waited_for(self) -> Iterator[None]:
        """Counts the time within ``with`` as spent waiting for samples."""
        self._count()
        self._waiting += 1
        try:
            yield
        finally:
            self._count()
            self._waiting -= 1

    def load(self, workers: Mapping[str, Worker]) -> FleetLoad:
        """Returns the load since the last call."""
        now = self._count()
        ready = [worker for worker in workers.values() if worker.ready]
        found = FleetLoad(
            seconds=now - self._since_s,
            waited_s=self._waited_s,
            samples=self.samples,
            workers=len(ready),
            slots=sum(worker.slots for worker in ready),
        )
        self._waited_s, self._since_s = 0.0, now
        return found


async def scale(
    launcher: Launcher,
    scaler: Scaler,
    backlog: Backlog,
    workers: Mapping[str, Worker],
    every_s: float,
    decided: Callable[[int, Decision], None],
) -> None:
    """Has the number of a launcher's workers follow their load, until this is cancelled.

    Args:
      decided: receives the number of workers before a decision, and the decision.
    """
    backlog.load(workers)  # what was before counts for nothing
    while True:
        await asyncio.sleep(every_s)
        before = scaler.wanted
        if decision := scaler.add(backlog.load(workers)):
            launcher.resize(decision.workers)
            decided(before, decision)
