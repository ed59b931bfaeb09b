"""The use of the machine by processes: CPU, memory and disk of each, and the machine's network."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress

import psutil

from rlax_plugin.liveness.accelerators import FULLEST, IN_USE, accelerator_figures

CLOCK = "unix_s"
"""Figure of a heartbeat: the time of the worker's clock, Unix time in seconds."""

Figures = Mapping[str, float]

_CPU, _MEMORY = "process_cpu_s_total", "process_memory_bytes"
_READ, _WRITTEN = "process_read_bytes_total", "process_written_bytes_total"
# Of psutil, where a system or a container does not tell: it has no method then, or cannot parse.
_UNKNOWN = (psutil.Error, OSError, AttributeError, RuntimeError, ValueError)
_MOST = 1e15  # of any value: a worker may report what it likes
_LEAST_S = 0.05  # between two reports whose difference is a rate
_RATES = {_CPU: "cpu", _READ: "read_bytes_per_s", _WRITTEN: "written_bytes_per_s"}


def own_figures() -> dict[str, float]:
    """Returns the figures of this process: clock, CPU, memory, bytes of disks, accelerators."""
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
        io = process.io_counters()
        found |= {_READ: float(io.read_bytes), _WRITTEN: float(io.write_bytes)}
    return found


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
        counters = None
        with suppress(*_UNKNOWN):
            counters = psutil.net_io_counters()
        now_s = time.monotonic()
        if counters is None:
            return {}
        total = float(counters.bytes_sent + counters.bytes_recv)
        before_s, before = self._network or (now_s, total)
        self._network = now_s, total
        rate = (total - before) / (now_s - before_s) if now_s > before_s else 0.0
        return {"machine/all_network_bytes_per_s": max(0.0, rate)}


def _rate(before: Figures, now: Figures, total: str) -> float:
    seconds = now.get(CLOCK, 0.0) - before.get(CLOCK, 0.0)
    if seconds < _LEAST_S or total not in before or total not in now:
        return 0.0
    rate = (now[total] - before[total]) / seconds
    return rate if 0 <= rate < _MOST else 0.0
