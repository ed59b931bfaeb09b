"""A weight store that is away for a while, in a whole run of real processes and real TensorStore.

Three readings within 1.5 s that failed for whatever reason were once taken for damage.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import python_path
from runs import TWO_WORKERS, Run, plugins

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.tools.commands.audit import audit

OUTAGE_S = float(os.environ.get("RLAX_TEST_OUTAGE_S", "0"))  # 30 was tried by hand, of each kind
WORKERS = ("local-0", "local-1")
# What the workers say of each fault. On a full disk it is the trainer that cannot write.
FAULTS = {"denied": "PERMISSION_DENIED", "reset": "Recv failure", "silent": "Timeout was reached"}


@pytest.mark.ci
def test_nobody_is_quarantined_by_an_outage_and_a_flipped_bit_still_does(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", python_path(Path(__file__).parent))
    fault = tmp_path / "fault"
    run = Run(
        tmp_path,
        TWO_WORKERS,
        plugins("remote_store"),
        f"rlax.weights.store={{name: remote, fault_file: {fault}}}",
        "rlax.trainer={name: bigram, train_s: 0.1, learning_rate: 0.01}",  # never too good to go on
        "rlax.evaluation.problems=0",
        "rlax.staleness.max_staleness=2",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "steps=10000",
    )

    def said_by(name: str, text: str) -> int:
        log = run.dir / f"logs/{name}.log"
        return log.read_text().count(text) if log.exists() else 0

    def until_said(text: str, names: Sequence[str] = WORKERS, more: int = 1) -> None:
        """Until the logs say it so many times more often than they do now."""
        enough = {name: said_by(name, text) + more for name in names}
        run.until(lambda: all(said_by(n, text) >= c for n, c in enough.items()), text)

    def trained(more: int) -> None:
        enough = len(run.steps()) + more
        run.until(lambda: len(run.steps()) >= enough, f"{more} steps more")

    until_said("serving version")
    trained(2)
    processes = {worker.pid for worker in run.workers()}
    for how in (*FAULTS, "full"):
        before, ends_s = len(run.steps()), time.monotonic() + OUTAGE_S
        fault.write_text(how)
        if how == "full":
            until_said("weights were not written, trying again", ["trainer"])
        else:
            until_said(FAULTS[how])
        if how == "denied":
            until_said("trying again", more=3)
        run.until(lambda ends_s=ends_s: time.monotonic() >= ends_s, "the outage's end")
        during = len(run.steps())
        fault.unlink()
        trained(3)
        assert {worker.pid for worker in run.workers()} == processes, f"workers ended: {how}"
        print(f"{how} for {OUTAGE_S:g} s: steps {before} -> {during} -> {len(run.steps())}")
    for name in WORKERS:
        assert not said_by(name, "is damaged")

    fault.write_text("flipped")
    until_said("worker local-1 failed", ["local-1"])
    # It ends once the trainer has heard why.
    run.until(lambda: not processes <= {worker.pid for worker in run.workers()}, "its end")
    fault.unlink()
    run.process.send_signal(signal.SIGINT)
    status, out = run.end()
    assert status == 130, out
    assert "worker local-1 is quarantined" in out and "DATA_LOSS" in out
    assert "local-0 is quarantined" not in out
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
