"""The metrics of a step, computed beside the event loop from what the run has counted since then.

It owns the counts at the end of the last step, of which a step's metrics are the differences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from rlax_plugin.config import RlaxSection, Schedule
from rlax_plugin.rollout.fleet.worker import Worker
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.metrics.step import FinishedStep, step_metrics


class StepFigures:
    """Computes the metrics of steps, one after the other; lives on the event loop.

    A thread computes them: that takes 50 ms for 16,000 samples, and may wait for figures that a
    device still computes.

    Args:
      schedules: dotted key -> schedule of each number of the config that changes.
    """

    def __init__(
        self, section: RlaxSection, generation: Generation, schedules: Mapping[str, Schedule]
    ):
        self._section, self._generation, self._schedules = section, generation, schedules
        self._slot_use = SlotUse()
        self._replaced_before = 0  # reward processes, at the last step's end

    @property
    def _replaced(self) -> int:
        return sum(pool.replaced for pool in self._generation.pools)

    def so_far(self, unfinished: FinishedStep) -> Coroutine[Any, Any, dict[str, float]]:
        """Returns the metrics of a step that has not ended; the counts are those of this call."""
        generation = self._generation
        scaler, workers = generation.scaler, generation.fleet.workers
        return asyncio.to_thread(
            step_metrics,
            unfinished,
            self._section,
            workers=len(workers),
            wanted=None if scaler is None else scaler.wanted,
            replaced=self._replaced - self._replaced_before,
            figures=[worker.figures for worker in workers.values()],
            schedules=self._schedules,
        )

    async def take(self, done: FinishedStep, others: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of a step that has ended, and begins to count for the next one.

        Args:
          others: further metrics of the step.
        """
        computed = self.so_far(done)
        used = self._slot_use.take(self._generation.fleet.workers.values())
        self._replaced_before = self._replaced
        return {**await computed, **others, **used}


class SlotUse:
    """Counts the decode steps of all workers, and in how many of them a slot generated a token."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, float, float]] = {}

    def take(self, workers: Iterable[Worker]) -> dict[str, float]:
        """Returns the metrics since the last call; none if nothing was decoded or counted.

        ``figures`` of a worker are those of its last heartbeat.
        """
        used = offered = decoded = seconds = 0.0
        now: dict[tuple[str, str], tuple[float, float, float]] = {}
        for worker in workers:
            figures = worker.figures
            if "slot_steps_total" not in figures or "steps_total" not in figures:
                continue
            steps, in_use = figures["steps_total"], figures["slot_steps_total"]
            decode_s = figures.get("decode_s_total", 0.0)
            steps_before, before, s_before = self._before.get(worker.identity, (0.0, 0.0, 0.0))
            now[worker.identity] = steps, in_use, decode_s
            offered += (steps - steps_before) * worker.slots
            used += in_use - before
            if decode_s > 0:  # it reports the time, too
                decoded += steps - steps_before
                seconds += decode_s - s_before
        self._before = now
        found = {"rollout/slots_used": used / offered} if offered > 0 else {}
        if decoded > 0 and seconds > 0:
            found["rollout/decode_step_s"] = seconds / decoded
        return found
