"""A worker whose weights are wrong, in a run: a quarantine is of the process that has them."""

import os
import re
import sqlite3
from contextlib import closing

from runs import HELPERS, TWO_WORKERS, Run, held, plugins

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit


def test_samples_of_a_quarantined_worker_are_not_trained(tmp_path, monkeypatch):
    """In a whole run; tests/unit/weights/test_taking.py has the other ways to be wrong."""
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    joined, generated, found = (tmp_path / name for name in ("joined", "generated", "found"))
    run = Run(
        tmp_path,
        TWO_WORKERS,
        # Version 4 is the newest for as long as local-1 needs to load it.
        *held({3: joined, 4: generated, 5: found}),
        plugins("held", "faulty_parts"),
        # A group takes longer than a worker is held up on a busy machine, so each gets some.
        "rlax.rollouts.engine={name: faulty, fault_at_version: 4, fault_worker: local-1, "
        "latency_s: 0.5}",
        "rlax.launcher.max_restarts=0",
        # The groups of steps 4 and 5 are there before step 4 begins, none of them rejected.
        "rlax.staleness.max_staleness=2",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "rlax.curation.filters=[]",
        "rlax.rollouts.slots=4",  # one group at a time, so that no worker gets all of a step
        "steps=6",
    )
    log = run.dir / "logs/local-1.log"

    def says(text: str) -> None:
        run.until(lambda: log.exists() and text in log.read_text(), f"{text!r} of local-1")

    says("serving version")
    joined.touch()
    # Both workers were idle when the groups of step 5 were issued, so each generates some.
    waiting = run.until(
        lambda: waiting if (waiting := accepted(run)).keys() == {*range(12, 20)} else None,
        "the groups of steps 4 and 5",
    )
    not_trusted = {
        group for group, worker in waiting.items() if group >= 16 and worker == "local-1"
    }
    assert not_trusted
    generated.touch()
    says("worker local-1 failed")
    found.touch()
    status, out = run.end()
    assert status == 0, out
    assert re.search(r"worker local-1 is quarantined: .*the canary's log-prob", out), out
    by_local_1 = [r for r in run.samples() if r["workers"] == ["local-1"]]
    assert all(max(r["versions"]) < 4 for r in by_local_1)
    assert len(run.trained()) == 96
    # Generated before its fault was found, and not trained by then: not trusted any more.
    events = [e for s, _ in journal.read(RunFiles(run.dir)) for e in s.events]
    assert {e.group for e in events if isinstance(e, ev.Dropped)} == not_trusted
    assert not not_trusted & {r["group"] for r in run.trained()}
    assert run.summary()["worker_restarts"] == 0
    assert audit(RunFiles(run.dir)).violation is None


def accepted(run: Run) -> dict[int, str]:
    """Group -> worker of those that wait to be trained, as the ledger of a live run has them."""
    query = """SELECT group_id, json_extract(body, '$.workers[0]') FROM groups
        JOIN events USING (group_id) WHERE state = 'accepted' AND event = 'generated'"""
    with closing(sqlite3.connect(run.dir / "ledger.sqlite", timeout=60)) as ledger:
        return dict(ledger.execute(query))
