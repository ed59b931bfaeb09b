"""The CPU time and the memory of a run's processes between two of its steps."""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from rlax_plugin.liveness.marks import Mark, lives, marks


class Usage(NamedTuple):
    """The CPU time and the memory of the processes of a run.

    Attributes:
      trainer_cpu_s, workers_cpu_s: CPU time of a step, in seconds; the second is the sum of all
        workers. NaN: the steps were too short to tell.
      trainer_bytes, worker_bytes, other_bytes: the largest resident memory of the trainer, of a
        worker, and of all other processes together.
    """

    trainer_cpu_s: float
    workers_cpu_s: float
    trainer_bytes: float
    worker_bytes: float
    other_bytes: float


@dataclass
class UsageMeter:
    """Looks at the processes of a run as it goes on.

    Args:
      state_dir: of the run.
      warm: steps at the start that do not count.
    """

    state_dir: Path
    warm: int
    _first: tuple[int, dict[Mark, float]] | None = None  # step, CPU seconds of each process
    _last: tuple[int, dict[Mark, float]] | None = None
    _bytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def look(self, step: int) -> None:
        """Takes the figures of all processes; ``step`` is the newest finished one."""
        cpu_s: dict[Mark, float] = {}
        others = 0.0
        for mark in marks(self.state_dir):
            with suppress(psutil.Error, OSError):
                process = psutil.Process(mark.pid)
                if not lives(mark):
                    continue
                times, size = process.cpu_times(), float(process.memory_info().rss)
                cpu_s[_still(mark)] = times.user + times.system
                if mark.role in ("trainer", "worker"):
                    self._bytes[mark.role] = max(self._bytes[mark.role], size)
                else:
                    others += size
        self._bytes["other"] = max(self._bytes["other"], others)
        if step < self.warm or not any(mark.role == "trainer" for mark in cpu_s):
            return
        if self._first is None:
            self._first = step, cpu_s
        elif step > self._first[0] and self._first[1].keys() <= cpu_s.keys():
            self._last = step, cpu_s  # at the end of a run its workers go first

    def take(self) -> Usage:
        """Returns the figures so far."""
        return Usage(
            self._cpu_s("trainer"),
            self._cpu_s("worker"),
            self._bytes["trainer"],
            self._bytes["worker"],
            self._bytes["other"],
        )

    def _cpu_s(self, role: str) -> float:
        if self._first is None or self._last is None:
            return math.nan
        (first, before), (last, after) = self._first, self._last
        used = sum(after[mark] - before.get(mark, 0.0) for mark in after if mark.role == role)
        return used / (last - first) if used > 0 else math.nan


def _still(mark: Mark) -> Mark:
    """Returns the mark without what changes in it, so that it names its process."""
    return Mark(mark.role, mark.name, mark.pid, mark.start, mark.boot, mark.state_dir)
