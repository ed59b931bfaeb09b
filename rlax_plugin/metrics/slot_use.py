"""The share of the workers' decode slots in use, counted in decode steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol


class Decoding(Protocol):
    """A worker, as far as its slots are concerned; ``figures`` are those of its last heartbeat."""

    @property
    def identity(self) -> tuple[str, str]: ...

    @property
    def slots(self) -> int: ...

    @property
    def figures(self) -> Mapping[str, float]: ...


class SlotUse:
    """Counts the slot-steps of all workers, and those in which a slot generated a token."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, float]] = {}

    def take(self, workers: Iterable[Decoding]) -> dict[str, float]:
        """Returns the metric since the last call; none if nothing was decoded or counted."""
        used = offered = 0.0
        now: dict[tuple[str, str], tuple[float, float]] = {}
        for worker in workers:
            figures = worker.figures
            if "slot_steps_total" not in figures or "steps_total" not in figures:
                continue
            steps, in_use = figures["steps_total"], figures["slot_steps_total"]
            steps_before, before = self._before.get(worker.identity, (0.0, 0.0))
            now[worker.identity] = steps, in_use
            offered += (steps - steps_before) * worker.slots
            used += in_use - before
        self._before = now
        return {"rollout/slots_used": used / offered} if offered > 0 else {}
