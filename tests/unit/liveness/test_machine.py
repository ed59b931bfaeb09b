"""Machine metrics are rates between two reports of a process, and sums over processes."""

from __future__ import annotations

import os
import time

import pytest

from rlax_plugin.liveness.machine import CLOCK, MachineMetrics, own_figures, process_figures


def report(at: float, cpu: float, memory: float, read: float = 0.0, written: float = 0.0):
    return {
        CLOCK: at,
        "process_cpu_s_total": cpu,
        "process_memory_bytes": memory,
        "process_read_bytes_total": read,
        "process_written_bytes_total": written,
    }


def machine(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if "network" not in name}


def test_rates_are_by_the_clock_of_the_process() -> None:
    taken = MachineMetrics()
    first = taken.take({"workers": [("a", report(100, 5, 10)), ("b", report(7, 50, 30))]})
    assert machine(first) == {
        "machine/workers_memory_bytes": 40,
        "machine/workers_memory_bytes_max": 30,
        "machine/workers_cpu": 0,  # of one report
        "machine/workers_read_bytes_per_s": 0,
        "machine/workers_written_bytes_per_s": 0,
    }
    # a: 3 s of CPU and 8 bytes in 2 s; b: 1 s in 4 s. No report since is the same rate.
    newer = [("a", report(102, 8, 20, read=8)), ("b", report(11, 51, 30, written=12))]
    for _ in range(2):
        found = taken.take({"workers": newer})
        assert found["machine/workers_cpu"] == 1.5 + 0.25
        assert found["machine/workers_read_bytes_per_s"] == 4
        assert found["machine/workers_written_bytes_per_s"] == 3
        assert found["machine/workers_memory_bytes"] == 50
    # b has gone and another process has its place: only what is known of two reports counts.
    gone = taken.take({"workers": [("a", report(104, 9, 20)), ("c", report(1, 99, 5))]})
    assert gone["machine/workers_cpu"] == 0.5


def test_what_a_process_says_is_checked() -> None:
    taken = MachineMetrics()
    taken.take({"workers": [("a", report(100, 5, 10))]})
    back = taken.take({"workers": [("a", report(90, 9, 10))]})  # its clock was set back
    assert back["machine/workers_cpu"] == 0
    less = taken.take({"workers": [("a", report(91, 2, 10))]})  # it counts from the start again
    assert less["machine/workers_cpu"] == 0
    assert machine(taken.take({"workers": [("a", {"slots": 4.0})], "rewards": []})) == {}


def test_figures_of_a_real_process() -> None:
    before, taken = own_figures(), MachineMetrics()
    end = time.process_time() + 0.2
    block = bytearray(32 << 20)
    while time.process_time() < end:
        block[time.process_time_ns() % len(block)] = 1
    after = own_figures()
    assert after["process_cpu_s_total"] - before["process_cpu_s_total"] >= 0.18
    assert after[CLOCK] > before[CLOCK] and after["process_memory_bytes"] > 32 << 20
    taken.take({"trainer": [(0, before)]})
    found = taken.take({"trainer": [(0, after)]})
    expected = (after["process_cpu_s_total"] - before["process_cpu_s_total"]) / (
        after[CLOCK] - before[CLOCK]
    )
    assert found["machine/trainer_cpu"] == pytest.approx(expected)
    assert found["machine/all_network_bytes_per_s"] >= 0
    assert process_figures(os.getpid()).keys() == after.keys()
    assert process_figures(2**30) == {}
