"""The use of the machine by processes: CPU, memory and disk of each, and the machine's network."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping

import psutil

CLOCK = "unix_s"
"""Figure of a heartbeat: the time of the worker's clock, Unix time in seconds."""

Figures = Mapping[str, float]

_CPU, _MEMORY = "process_cpu_s_total", "process_memory_bytes"
_READ, _WRITTEN = "process_read_bytes_total", "process_written_bytes_total"
_RATES = {_CPU: "cpu", _READ: "read_bytes_per_s", _WRITTEN: "written_bytes_per_s"}


def own_figures() -> dict[str, float]:
    """Returns the figures of this process: its clock, CPU seconds, memory, and bytes of disks."""
    return {CLOCK: time.time(), **figures_of(psutil.Process())}


def process_figures(pid: int) -> dict[str, float]:
    """Returns the figures of another process of this user; none if it has ended."""
    try:
        return {CLOCK: time.time(), **figures_of(psutil.Process(pid))}
    except psutil.Error:
        return {}


def figures_of(process: psutil.Process) -> dict[str, float]:
    """Returns the figures of a process; those that the system does not tell are left out."""
    try:
        with process.oneshot():
            times = process.cpu_times()
            found = {
                _CPU: times.user + times.system,
                _MEMORY: float(process.memory_info().rss),
            }
            io = process.io_counters()
            return found | {_READ: float(io.read_bytes), _WRITTEN: float(io.write_bytes)}
    except psutil.AccessDenied:  # a container may forbid it
        return found
    except psutil.Error:
        return {}


class MachineMetrics:
    """Computes metrics ``machine/...`` of groups of processes, from their newest figures.

    A rate is that between the last two reports of a process, by the clock of that process. A
    process that has reported once adds nothing to a rate.
    """

    def __init__(self) -> None:
        self._reports: dict[Hashable, tuple[Figures, Figures]] = {}  # the last two
        self._network: tuple[float, float] | None = None

    def take(self, groups: Mapping[str, Iterable[tuple[Hashable, Figures]]]) -> dict[str, float]:
        """Returns the metrics of the groups, and of the network of this machine.

        Args:
          groups: name -> identity and newest figures of each of its processes; a group without
            processes has no metrics.
        """
        metrics: dict[str, float] = {}
        reports: dict[Hashable, tuple[Figures, Figures]] = {}
        for group, processes in groups.items():
            found = [self._last_two((group, who), figures) for who, figures in processes]
            reports |= dict(found)
            memory = [now[_MEMORY] for _, (_, now) in found if _MEMORY in now]
            if not memory:
                continue
            metrics[f"machine/{group}_memory_bytes"] = sum(memory)
            if len(memory) > 1:
                metrics[f"machine/{group}_memory_bytes_max"] = max(memory)
            for total, name in _RATES.items():
                metrics[f"machine/{group}_{name}"] = sum(_rate(*two, total) for _, two in found)
        self._reports = reports
        return metrics | self._of_network()

    def _last_two(
        self, identity: Hashable, figures: Figures
    ) -> tuple[Hashable, tuple[Figures, Figures]]:
        before, newest = self._reports.get(identity, (figures, figures))
        if figures.get(CLOCK) != newest.get(CLOCK):
            before, newest = newest, figures
        return identity, (before, newest)

    def _of_network(self) -> dict[str, float]:
        now_s, counters = time.monotonic(), psutil.net_io_counters()
        if counters is None:  # the machine has no network
            return {}
        total = float(counters.bytes_sent + counters.bytes_recv)
        before_s, before = self._network or (now_s, total)
        self._network = now_s, total
        rate = (total - before) / (now_s - before_s) if now_s > before_s else 0.0
        return {"machine/all_network_bytes_per_s": max(0.0, rate)}


def _rate(before: Figures, now: Figures, total: str) -> float:
    seconds = now.get(CLOCK, 0.0) - before.get(CLOCK, 0.0)
    if seconds <= 0 or total not in before or total not in now:
        return 0.0
    return max(0.0, (now[total] - before[total]) / seconds)
