"""Processes that outlive their trainer, and workers that must not be trusted."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from test_runs import CONFIG, Run

STEPS = 14


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


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
    # It goes back to the version that the trainer resumed from, whose number it held already.
    resumed_at = second[0]
    assert resumed_at in (5, 10) and first == list(range(len(first))) and max(first) >= resumed_at
    assert sorted(set(second)) == list(range(resumed_at, STEPS + 1))
    assert [m["step"] for m in run.steps()] == list(range(1, STEPS + 1))
    trained = [r for r in run.rollouts() if r["refused"] is None]
    assert {r["worker"] for r in trained} == {"survivor"}
    assert all(set(r["versions"]) == {r["step"] - 1} for r in trained)


FAULT = "rlax.rollouts.engine={name: scripted, weight_fault: flipped_bit, fault_at_version: %d%s}"


def test_wrong_weights_on_every_worker_end_the_run_with_that_reason(tmp_path):
    status, out = Run(tmp_path, FAULT % (0, ""), "rlax.launcher.max_restarts=0").end()
    assert status == 1
    assert "ended 1 times in a row, the last time with status 1" in out
    assert re.search(r"error: .*version 0.*(fingerprint|checksum|damaged)", out), out


def test_a_quarantined_worker_costs_speed_and_no_more(tmp_path):
    run = Run(
        tmp_path,
        FAULT % (4, ", fault_worker: local-1, latency_s: 0.05"),
        "rlax.launcher.max_restarts=0",
    )
    status, out = run.end()
    assert status == 0, out
    assert re.search(r"worker local-1 is quarantined: .*version 4", out), out
    trained = [r for r in run.rollouts() if r["refused"] is None]
    drew = {step: {r["worker"] for r in trained if r["step"] == step} for step in range(1, 11)}
    assert all(workers == {"local-0"} for step, workers in drew.items() if step > 4)
    assert any("local-1" in workers for workers in drew.values())
    assert run.summary()["worker_restarts"] == 0
