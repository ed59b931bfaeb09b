"""Sums of the metrics of a run's steps, in memory that does not grow with their number."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

KEPT = 20
"""Number of first and of newest values of a metric that are kept."""


class _Column:
    """One metric: its first and newest values, and sums over all steps that have it."""

    __slots__ = ("count", "first", "largest", "newest", "total")

    def __init__(self, kept: int):
        self.count, self.total, self.largest = 0, 0.0, float("-inf")
        self.first: list[float] = []
        self.newest: deque[float] = deque(maxlen=kept)

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.largest = max(value, self.largest)
        if len(self.first) < KEPT:
            self.first.append(value)
        self.newest.append(value)


class RunStats:
    """Sums of step metrics over a run.

    Args:
      kept: name of a metric -> number of its newest values that are kept, if more than ``KEPT``.

    Attributes:
      steps: number of steps so far, those of earlier processes included.
      earlier: number of steps of earlier processes.
      recent: metrics of the newest ``KEPT`` steps.
    """

    def __init__(self, kept: Mapping[str, int] | None = None) -> None:
        self.training_started_s: float | None = None
        self.versions_published = 0  # by this process
        self.steps, self.earlier = 0, 0
        self.recent: deque[Mapping[str, float]] = deque(maxlen=KEPT)
        self._kept = kept or {}
        self._columns: dict[str, _Column] = {}

    def training_begins(self) -> None:
        """Takes the time at which training begins."""
        self.training_started_s = time.perf_counter()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of the next step."""
        self.steps += 1
        self.recent.append(metrics)
        for name, value in metrics.items():
            if (column := self._columns.get(name)) is None:
                kept = max(KEPT, self._kept.get(name, 0))
                column = self._columns[name] = _Column(kept)
            column.add(value)

    def begin_after(self, earlier: RunStats) -> None:
        """Takes over the sums of the steps of earlier processes, before the first own step."""
        self.steps = self.earlier = earlier.steps
        self.recent.extend(earlier.recent)
        self._columns = earlier._columns

    def count(self, name: str) -> int:
        """Returns the number of steps that have a metric."""
        return self._columns[name].count if name in self._columns else 0

    def newest(self, name: str) -> Sequence[float]:
        """Returns the newest values of a metric, the newest last."""
        return self._columns[name].newest if name in self._columns else ()

    def largest(self, name: str) -> float | None:
        """Returns the largest value of a metric; None: no step has it."""
        return self._columns[name].largest if name in self._columns else None

    def mean(self, name: str) -> float | None:
        """Returns the mean of a metric over all steps that have it; None: none has."""
        column = self._columns.get(name)
        return None if column is None else column.total / column.count

    def first_mean(self, name: str, count: int) -> float | None:
        """Returns the mean of the first values, at most ``KEPT``; None: there are none."""
        return _mean(self._columns[name].first[:count]) if name in self._columns else None

    def last_mean(self, name: str, count: int) -> float | None:
        """Returns the mean of the newest values, at most ``KEPT``; None: there are none."""
        return _mean(tuple(self.newest(name))[-count:])

    def rate(self, name: str, over: str) -> float:
        """Returns the sum of ``name`` per second of ``over``."""
        sums = [self._columns[one].total if one in self._columns else 0.0 for one in (name, over)]
        return sums[0] / sums[1] if sums[1] else 0.0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
