"""Machine metrics are rates between two reports of a process, and sums over processes."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rlax_plugin.base.liveness.accelerators import accelerator_figures, figures_of
from rlax_plugin.base.liveness.machine import CLOCK, MachineMetrics, own_figures, process_figures


def report(at: float, cpu: float, memory: float):
    return {CLOCK: at, "process_cpu_s_total": cpu, "process_memory_bytes": memory}


def test_rates_are_by_the_clock_of_the_process() -> None:
    taken = MachineMetrics()
    first = taken.take({"workers": [("a", report(100, 5, 10)), ("b", report(7, 50, 30))]})
    assert first == {
        "machine/workers_memory_bytes": 40,
        "machine/workers_memory_bytes_max": 30,
        "machine/workers_cpu": 0,  # of one report
    }
    # a: 3 s of CPU in 2 s; b: 1 s in 4 s. No report since is the same rate.
    newer = [("a", report(102, 8, 20)), ("b", report(11, 51, 30))]
    for _ in range(2):
        found = taken.take({"workers": newer})
        assert found["machine/workers_cpu"] == 1.5 + 0.25
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
    assert taken.take({"workers": [("a", {"slots": 4.0})], "rewards": []}) == {}


def device(**stats: int) -> SimpleNamespace:
    """A fake: of a JAX device, its memory."""
    return SimpleNamespace(memory_stats=lambda: stats or None)


def test_memory_of_accelerators() -> None:
    devices = [device(bytes_in_use=30, bytes_limit=100), device(bytes_in_use=5, bytes_limit=10)]
    found = figures_of(devices)
    assert found == {"accelerator_memory_bytes": 35, "accelerator_memory_share": 0.5}
    assert figures_of([device(bytes_in_use=3)]) == {"accelerator_memory_bytes": 3}
    assert figures_of([device()]) == {}  # a processor
    workers = [
        ("a", report(1, 1, 1) | found),
        ("b", report(1, 1, 1) | {"accelerator_memory_bytes": 5, "accelerator_memory_share": 0.7}),
        ("c", report(1, 1, 1) | {"accelerator_memory_bytes": -5, "accelerator_memory_share": 2}),
    ]
    metrics = MachineMetrics().take({"workers": workers, "trainer": [(0, report(1, 1, 1))]})
    assert metrics["machine/workers_accelerator_memory_bytes"] == 40
    assert metrics["machine/workers_accelerator_memory_share"] == 0.7
    assert not any("trainer_accelerator" in name for name in metrics)


def test_a_platform_that_does_not_tell_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def unimplemented() -> None:
        raise RuntimeError("UNIMPLEMENTED: memory_stats")

    bridge = SimpleNamespace(backends_are_initialized=lambda: True)  # fakes: of JAX
    jax = SimpleNamespace(local_devices=lambda: [SimpleNamespace(memory_stats=unimplemented)])
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    monkeypatch.setitem(sys.modules, "jax", jax)
    assert accelerator_figures() == {}


def test_jax_is_neither_imported_nor_initialized() -> None:
    program = (
        "import sys, jax; "
        "from rlax_plugin.base.liveness.accelerators import accelerator_figures as f; "
        "from jax._src import xla_bridge as b; print(f(), b.backends_are_initialized()); "
        "jax.devices(); print(f(), b.backends_are_initialized())"
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout == "{} False\n{} True\n", done.stderr


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
    assert process_figures(os.getpid()).keys() == after.keys()
    assert process_figures(2**30) == {}
