"""The use of the machine by processes: CPU and memory of each."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress

import psutil

from rlax_plugin.base.liveness.accelerators import FULLEST, IN_USE, accelerator_figures

CLOCK = "unix_s"
"""Figure of a heartbeat: the time of the worker's clock, Unix time in seconds."""

Figures = Mapping[str, float]

_CPU, _MEMORY = "process_cpu_s_total", "process_memory_bytes"
# Of psutil, where a system or a container does not tell: it has no method then, or cannot parse.
_UNKNOWN = (psutil.Error, OSError, AttributeError, RuntimeError, ValueError)
_MOST = 1e15  # of any value: a worker may report what it likes
_LEAST_S = 0.05  # between two reports whose difference is a rate


def own_figures() -> dict[str, float]:
    """Returns the figures of this process: clock, CPU, memory, accelerators."""
    return {CLOCK: time.time(), **figures_of(psutil.Process()), **accelerator_figures()}


def process_figures(pid: int) -> dict[str, float]:
    """Returns the figures of another process of this user; none if it has ended."""
    with suppress(*_UNKNOWN):
        return {CLOCK: time.time(), **figures_of(psutil.Process(pid))}
    return {}


def figures_of(process: psutil.Process) -> dict[str, float]:
    """Returns the figures of a process; those that the system does not tell are left out."""
    found: dict[str, float] = {}
    with suppress(*_UNKNOWN), process.oneshot():
        times = process.cpu_times()
        found[_CPU] = times.user + times.system
        found[_MEMORY] = float(process.memory_info().rss)
    return found


class MachineMetrics:
    """Computes metrics ``machine/...`` of groups of processes, from their newest figures.

    A rate is that between the last two reports of a process, by the clock of that process. A
    process that has reported once adds nothing to a rate.
    """

    def __init__(self) -> None:
        self._reports: dict[Hashable, tuple[Figures, Figures]] = {}  # the last two

    def take(self, groups: Mapping[str, Iterable[tuple[Hashable, Figures]]]) -> dict[str, float]:
        """Returns the metrics of the groups.

        Args:
          groups: name -> identity and newest figures of each of its processes; a group without
            processes has no metrics.
        """
        metrics: dict[str, float] = {}
        reports: dict[Hashable, tuple[Figures, Figures]] = {}
        for group, processes in groups.items():
            found = [self._last_two((group, who), figures) for who, figures in processes]
            reports |= dict(found)
            memory = [one[_MEMORY] for _, (_, one) in found if 0 <= one.get(_MEMORY, -1) < _MOST]
            if not memory:
                continue
            metrics[f"machine/{group}_memory_bytes"] = sum(memory)
            if len(memory) > 1:
                metrics[f"machine/{group}_memory_bytes_max"] = max(memory)
            now = [newest for _, (_, newest) in found]
            if used := [one[IN_USE] for one in now if 0 <= one.get(IN_USE, -1) < _MOST]:
                metrics[f"machine/{group}_{IN_USE}"] = sum(used)
            if shares := [one[FULLEST] for one in now if 0 <= one.get(FULLEST, -1) <= 1]:
                metrics[f"machine/{group}_{FULLEST}"] = max(shares)
            metrics[f"machine/{group}_cpu"] = sum(_cpu(*two) for _, two in found)
        self._reports = reports
        return metrics

    def _last_two(
        self, identity: Hashable, figures: Figures
    ) -> tuple[Hashable, tuple[Figures, Figures]]:
        before, newest = self._reports.get(identity, (figures, figures))
        if figures.get(CLOCK) != newest.get(CLOCK):
            before, newest = newest, figures
        return identity, (before, newest)


def _cpu(before: Figures, now: Figures) -> float:
    seconds = now.get(CLOCK, 0.0) - before.get(CLOCK, 0.0)
    if seconds < _LEAST_S or _CPU not in before or _CPU not in now:
        return 0.0
    rate = (now[_CPU] - before[_CPU]) / seconds
    return rate if 0 <= rate < _MOST else 0.0
