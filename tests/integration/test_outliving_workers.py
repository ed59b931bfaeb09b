"""Processes that outlive their trainer, and workers that must not be trusted."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from test_runs import CONFIG, Run

STEPS = 14


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def trained(run: Run) -> list[dict]:
    """Every trained sample of a run."""
    tables = [pq.read_table(path) for path in sorted(run.dir.glob("batches/*.parquet"))]
    return [row for table in tables for row in table.to_pylist()]


@contextmanager
def process(directory: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """``rlax`` with its output in ``<name>.log``; killed at the end if it still lives."""
    with (directory / f"{name}.log").open("w") as out:
        command = [sys.executable, "-m", "rlax_plugin", *arguments]
        started = subprocess.Popen(command, cwd=directory, stdout=out, stderr=out)
    try:
        yield started
    finally:
        started.kill()
        started.wait(20)


@pytest.mark.parametrize("parameter_server", ["embedded", "apart"])
def test_a_static_worker_outlives_a_killed_trainer(tmp_path, parameter_server):
    overrides = [
        f"steps={STEPS}",
        "rlax.launcher={name: static}",
        "rlax.trainer.train_s=0.05",
        f"rlax.network.port={(port := free_port())}",
    ]
    with ExitStack() as processes:
        if parameter_server == "apart":
            apart = str(free_port())
            overrides.append(f"rlax.weights.parameter_server=127.0.0.1:{apart}")
            server = process(
                tmp_path, "server", "parameter-server", CONFIG, *overrides, "--port", apart
            )
            processes.enter_context(server)
            while "listens on" not in (tmp_path / "server.log").read_text():
                time.sleep(0.05)
        join = ("--controller", f"127.0.0.1:{port}", "--name", "survivor")
        worker = processes.enter_context(
            process(tmp_path, "survivor", "serve", CONFIG, *overrides, *join)
        )
        run = Run(tmp_path, *overrides)
        run.until(lambda: len(run.steps()) >= 8, "eight steps")
        run.process.send_signal(signal.SIGKILL)
        run.process.communicate(timeout=20)
        assert worker.poll() is None
        run = Run(tmp_path, *overrides)
        status, out = run.end()
        assert status == 0, out
        assert worker.wait(20) == 0  # the very same process served both trainers
    before, after = (tmp_path / "survivor.log").read_text().split("another trainer process")
    first, second = (
        [int(n) for n in re.findall(r"serving version (\d+)", part)] for part in (before, after)
    )
    # In lockstep it loads every version that groups wait for; recorded batches need none drawn.
    assert first == list(range(len(first))) and len(first) >= 8
    assert second == sorted(set(second)) and second[0] >= 5 and second[-1] == STEPS
    assert [m["step"] for m in run.steps()] == list(range(1, STEPS + 1))
    rows = trained(run)
    assert len(rows) == 16 * STEPS and {r["worker"] for r in rows} == {"survivor"}
    assert all(set(r["versions"]) == {r["step"] - 1} for r in rows)


FAULT = (
    "rlax.rollouts.engine={name: scripted, weight_fault: swapped_tensors, fault_at_version: %d%s}"
)


def test_wrong_weights_on_every_worker_end_the_run_with_that_reason(tmp_path):
    status, out = Run(tmp_path, FAULT % (0, ""), "rlax.launcher.max_restarts=0").end()
    assert status == 1
    assert "ended 1 times in a row, the last time with status 1" in out
    assert re.search(r"error: version 0: .* has fingerprint .* was published", out), out


def test_a_quarantined_worker_costs_speed_and_no_more(tmp_path):
    run = Run(
        tmp_path,
        FAULT % (4, ", fault_worker: local-1, latency_s: 0.05"),
        "rlax.launcher.max_restarts=0",
    )
    status, out = run.end()
    assert status == 0, out
    assert re.search(r"worker local-1 is quarantined: version 4: .* has fingerprint", out), out
    by_local_1 = [r for r in trained(run) if r["worker"] == "local-1"]
    assert by_local_1 and all(max(r["versions"]) < 4 for r in by_local_1)
    assert len(trained(run)) == 160
    assert run.summary()["worker_restarts"] == 0
