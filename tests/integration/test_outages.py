"""A weight store that is away for a while, in a whole run of real processes and real TensorStore.

Three readings within 1.5 s that failed for whatever reason were once taken for damage.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from runs import Run

from rlax_plugin.commands.audit import audit
from rlax_plugin.records.files import RunFiles

PLUGINS = (
    "rlax.plugins=[rlax_plugin.testing, rlax_curation, rlax_launchers, rlax_objectives, "
    "remote_store]"
)
OUTAGE_S = float(os.environ.get("RLAX_TEST_OUTAGE_S", "3"))  # 30 was tried by hand, of each kind


@pytest.mark.slow
def test_nobody_is_quarantined_by_an_outage_and_a_flipped_bit_still_does(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    fault = tmp_path / "fault"
    run = Run(
        tmp_path,
        PLUGINS,
        f"rlax.weights.store={{name: remote, fault_file: {fault}}}",
        "rlax.trainer.train_s=0.1",
        "rlax.evaluation.problems=0",
        "rlax.staleness.max_staleness=2",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "steps=60",
    )

    def logs() -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted(run.dir.glob("logs/*.log"))}

    def trained(more: int) -> None:
        enough = len(run.steps()) + more
        run.until(lambda: len(run.steps()) >= enough, f"{more} steps more")

    trained(2)
    processes = {worker.pid for worker in run.workers()}
    for how in ("denied", "reset", "silent", "full"):
        fault.write_text(how)
        before, ends_s = len(run.steps()), time.monotonic() + OUTAGE_S
        run.until(lambda ends_s=ends_s: time.monotonic() > ends_s, "the outage's end")
        during = len(run.steps())
        fault.unlink()
        trained(3)
        assert {worker.pid for worker in run.workers()} == processes, f"workers ended: {how}"
        print(f"{how} for {OUTAGE_S:g} s: steps {before} -> {during} -> {len(run.steps())}")
    seen = logs()
    for name in ("local-0", "local-1"):
        for said in ("PERMISSION_DENIED", "Recv failure", "Timeout was reached"):
            assert said in seen[name], (name, said)
        assert seen[name].count("trying again") >= 7
        assert "is damaged" not in seen[name]
    assert "weights were not written, trying again" in seen["trainer"]

    fault.write_text("flipped")
    run.until(lambda: "worker local-1 failed" in logs()["local-1"], "its quarantine")
    fault.unlink()
    status, out = run.end()
    assert status == 0, out
    assert "worker local-1 is quarantined" in out and "DATA_LOSS" in out
    assert "local-0 is quarantined" not in out
    assert run.summary()["steps"] == 60 and run.summary()["complete"]
    report = audit(RunFiles(run.dir))
    assert report.clean, report.violation
