"""The metrics of a step, computed beside the event loop from what the run has counted since then.

It owns the counts at the end of the last step, of which a step's metrics are the differences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from rlax_plugin.config import RlaxSection, Schedule
from rlax_plugin.run.controller.generation import Generation
from rlax_plugin.run.metrics.slot_use import SlotUse
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
            replaced=generation.rewards.replaced - self._replaced_before,
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
        self._replaced_before = self._generation.rewards.replaced
        return {**await computed, **others, **used}
