"""Records who was busy in each step, from what the parts of the run know of themselves."""

from __future__ import annotations

import time

from rlax_plugin.rollout.fleet.fleet import Fleet, FleetListener, Worker
from rlax_plugin.run.metrics.spans import Span, SpansFile, bounded
from rlax_plugin.run.metrics.step import FinishedStep

_LOADING = ("stream_s", "read_s", "verify_s")  # figures of a worker, one after the other


class Timeline(FleetListener):
    """Collects the spans of a step, and writes them when it ends; lives on the event loop.

    A worker is busy from the first request that it is sent until it has answered all. The end of
    loading weights is the heartbeat that reports them, and its length is what the worker measured.

    Args:
      fleet: its workers have lanes; this listens to it.
    """

    def __init__(self, fleet: Fleet, file: SpansFile):
        self._fleet, self._file = fleet, file
        self._spans: list[Span] = []
        self._versions: dict[str, int] = {}
        self._began_s = time.perf_counter()
        fleet.listeners.append(self)

    def worker_heard(self, worker: Worker) -> None:
        if worker.version < 0 or self._versions.get(worker.name) == worker.version:
            return
        self._versions[worker.name] = worker.version
        now_s = time.perf_counter()
        took_s = sum(max(0.0, worker.figures.get(name, 0.0)) for name in _LOADING)
        took_s = min(took_s, now_s - self._began_s)  # a worker may report what it likes
        self._spans.append(Span(_lane(worker), "loads weights", now_s - took_s, now_s))

    def worker_lost(self, worker: Worker, reason: str) -> None:
        self._take(worker)
        self._versions.pop(worker.name, None)

    def _take(self, worker: Worker) -> None:
        lane = _lane(worker)
        self._spans += [Span(lane, "generates", *busy) for busy in worker.progress.take_busy()]

    def step_finished(self, done: FinishedStep) -> None:
        """Writes the spans that have become known since the last step.

        Groups are generated and scored for a step while earlier ones train, so some of its spans
        lie before its beginning.
        """
        for worker in self._fleet.workers.values():
            self._take(worker)
        times = done.times
        spans = [*times.spans, *done.stats.spans, *self._spans]
        self._spans.clear()
        found = bounded(spans, len(self._fleet.workers))
        self._file.add(done.step, times.ended_s - times.whole_s, times.ended_s, found)


def _lane(worker: Worker) -> str:
    return f"worker {worker.name}"
