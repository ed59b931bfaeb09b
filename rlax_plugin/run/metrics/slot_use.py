"""The decode steps of the workers: the share of their slots in use, and the time of a step."""

from __future__ import annotations

from collections.abc import Iterable

from rlax_plugin.rollout.fleet.worker import Worker


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
