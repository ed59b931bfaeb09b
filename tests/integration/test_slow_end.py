"""The end of a complete run of which a part does not end."""

from __future__ import annotations

from pathlib import Path

from runs import Run, plugins

# A store whose last deletion never ends (version 3 retires version 2), and a tracker that never
# closes. What they may take is shortened in the trainer's process only.
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


def store(config, context):
    from rlax_plugin.weights import service

    service._CLOSE_S = 1.0
    return StuckStore()


def tracker(config, context):
    from rlax_plugin.controller import closing

    closing.TRACKERS_S = 1.0
    return StuckTracker()


@hookimpl
def rlax_register_weight_store():
    return {"stuck": Extension(NoOptions, store)}


@hookimpl
def rlax_register_tracker():
    return {"stuck": Extension(NoOptions, tracker)}
"""


def test_a_complete_run_ends_whatever_neither_deletes_nor_closes(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(PLUGIN)
    run = Run(
        tmp_path,
        plugins("rlax_jsonl", "stuck"),
        "rlax.weights={store: {name: stuck}, keep: 1}",
        "rlax.trackers=[{name: stuck}, {name: jsonl}]",
        "rlax.evaluation.problems=0",
        "steps=3",
    )
    status, out = run.end()
    assert status == 0, out
    left = sorted(path.name[:8] for path in (run.dir / "weights").iterdir())
    assert left == ["00000002", "00000003"]
    assert "tracker stuck (rlax.trackers.0) did not close within 1 s" in out
    assert "error: " not in out and "stop_s" not in out
    assert run.summary()["complete"] and len(run.steps()) == 3
    # What is started before the trackers is ended after them: nothing is skipped.
    assert (run.dir / "tracker.jsonl").read_text().count("\n") == 3
    assert not (run.dir / "ledger.sqlite-wal").exists()
    assert not run.workers()
