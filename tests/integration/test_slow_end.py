"""The end of a complete run of which a part does not end."""

from __future__ import annotations

from pathlib import Path

from runs import Run

# A tracker that never closes. What it may take is shortened in the trainer's process only.
PLUGIN = """
import time

from rlax_plugin.api import Extension, NoOptions, hookimpl


class Stuck:
    def log(self, step, metrics):
        pass

    def close(self):
        time.sleep(3600)


def stuck(config, context):
    from rlax_plugin.controller import closing

    closing.TRACKERS_S = 1.0
    return Stuck()


@hookimpl
def rlax_register_tracker():
    return {"stuck": Extension(NoOptions, stuck)}
"""


# A store whose last deletion never ends: version 3 retires version 2.
STORE = """
import time

from rlax_plugin.api import Extension, NoOptions, hookimpl
from rlax_plugin.testing.store import NpzStore


class Stuck(NpzStore):
    def delete(self, path):
        if "/00000002-" in path:
            time.sleep(3600)
        super().delete(path)


@hookimpl
def rlax_register_weight_store():
    return {"stuck": Extension(NoOptions, lambda config, context: Stuck())}
"""


def test_a_complete_run_whose_store_never_deletes_ends_with_status_0(tmp_path: Path) -> None:
    (tmp_path / "stuck_store.py").write_text(STORE)
    run = Run(
        tmp_path,
        "rlax.plugins=[rlax_plugin.testing, rlax_curation, rlax_launchers, rlax_objectives, "
        "stuck_store]",
        "rlax.weights={store: {name: stuck}, keep: 1}",
        "rlax.evaluation.problems=0",
        "rlax.launcher.workers=1",
        "steps=3",
    )
    status, out = run.end()
    assert status == 0, out
    left = sorted(path.name[:8] for path in (run.dir / "weights").iterdir())
    assert run.summary()["complete"] and left == ["00000002", "00000003"]
    assert not run.workers()


def test_a_complete_run_whose_tracker_never_closes_ends_with_status_0(tmp_path: Path) -> None:
    (tmp_path / "stuck_tracker.py").write_text(PLUGIN)
    run = Run(
        tmp_path,
        "rlax.plugins=[rlax_plugin.testing, rlax_curation, rlax_launchers, rlax_objectives, "
        "rlax_jsonl, stuck_tracker]",
        "rlax.trackers=[{name: stuck}, {name: jsonl}]",
        "rlax.evaluation.problems=0",
        "rlax.launcher.workers=1",
        "steps=2",
    )
    status, out = run.end()
    assert status == 0, out
    assert "tracker stuck (rlax.trackers.0) did not close within 1 s" in out
    assert "error: " not in out and "stop_s" not in out
    assert run.summary()["complete"] and len(run.steps()) == 2
    # What is started before the trackers is ended after them: nothing is skipped.
    assert (run.dir / "tracker.jsonl").read_text().count("\n") == 2
    assert not (run.dir / "ledger.sqlite-wal").exists()
    assert not run.workers()
