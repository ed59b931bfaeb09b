"""The end of a complete run of which a part does not end."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import python_path
from runs import Run, plugins

# A store whose last deletion never ends (version 3 retires version 2), and a tracker that never
# closes.
PLUGIN = """
import time

from rlax_plugin.api import Extension, NoOptions, hookimpl
from rlax_plugin.testing.store import NpzStore


class StuckStore(NpzStore):
    def delete(self, path):
        if "/00000002-" in path:
            time.sleep(3600)
        super().delete(path)


class StuckTracker:
    def log(self, step, metrics):
        pass

    def close(self):
        time.sleep(3600)


@hookimpl
def rlax_register_weight_store():
    return {"stuck": Extension(NoOptions, lambda config, context: StuckStore())}


@hookimpl
def rlax_register_tracker():
    return {"stuck": Extension(NoOptions, lambda config, context: StuckTracker())}
"""


def test_a_complete_run_ends_whatever_neither_deletes_nor_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stuck.py").write_text(PLUGIN)
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path))
    run = Run(
        tmp_path,
        plugins("rlax_tensorboard", "stuck"),
        "rlax.weights={store: {name: stuck}, keep: 1}",
        "rlax.trackers=[{name: stuck}, {name: tensorboard}]",
        "rlax.evaluation.problems=0",
        "rlax.deadlines.close_s=5",  # the other tracker closes in time, also on a busy machine
        "steps=3",
    )
    status, out = run.end()
    assert status == 0, out
    left = sorted(path.name[:8] for path in (run.dir / "weights").iterdir())
    assert left == ["00000002", "00000003"]
    assert (
        "tracker stuck (rlax.trackers.0) did not close within 5 s (rlax.deadlines.close_s)" in out
    )
    assert "error: " not in out and "stop_s" not in out
    assert run.summary()["complete"] and len(run.steps()) == 3
    # What is started before the trackers is ended after them: nothing is skipped.
    assert list((run.dir / "tensorboard").glob("events*"))
    assert not (run.dir / "ledger.sqlite-wal").exists()
    assert not run.workers()
