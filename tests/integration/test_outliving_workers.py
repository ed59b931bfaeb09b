"""Processes that outlive their trainer, and workers that must not be trusted."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from contextlib import ExitStack, closing

from runs import CONFIG, DEADLINE_S, HELPERS, TWO_WORKERS, Run, free_port, held, plugins, process
from waiting import wait_until

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

_SERVING = r"serving version (\d+)"


def test_a_static_worker_outlives_a_killed_trainer(tmp_path):
    """So does a parameter server of its own; tests/maxtext/test_killed_runs.py has none."""
    apart = str(free_port())
    overrides = (
        "rlax.launcher={name: static}",
        "rlax.trainer.train_s=0.05",
        f"rlax.network.port={(port := free_port())}",
        f"rlax.weights.parameter_server=127.0.0.1:{apart}",
    )
    with ExitStack() as processes:
        listen = ("parameter-server", CONFIG, *overrides, "--port", apart)
        processes.enter_context(process(tmp_path, "server", *listen))
        server = tmp_path / "server.log"
        wait_until(lambda: "listens on" in server.read_text(), "the server", limit_s=DEADLINE_S)
        join = ("--controller", f"127.0.0.1:{port}", "--name", "survivor")
        worker = processes.enter_context(process(tmp_path, "survivor", "serve", *overrides, *join))
        run = Run(tmp_path, *overrides, "steps=1000")
        run.until(lambda: len(run.steps()) >= 8, "eight steps")
        run.process.send_signal(signal.SIGKILL)
        run.process.communicate(timeout=DEADLINE_S)
        assert worker.poll() is None
        last = len(run.steps()) + 6
        run = Run(tmp_path, *overrides, f"steps={last}")
        status, out = run.end()
        assert status == 0, out
        assert worker.wait(DEADLINE_S) == 0  # the very same process served both trainers
    before, after = (tmp_path / "survivor.log").read_text().split("another trainer process")
    first, versions = ([int(n) for n in re.findall(_SERVING, part)] for part in (before, after))
    # In lockstep it loads every version that groups wait for; recorded batches need none generated.
    assert first == list(range(len(first))) and len(first) >= 8
    assert versions == sorted(set(versions)) and versions[0] >= 5 and versions[-1] == last
    assert [m["step"] for m in run.steps()] == list(range(1, last + 1))
    generated = run.trained()
    assert len(generated) == 16 * last and all(r["workers"] == ["survivor"] for r in generated)
    assert all(set(r["versions"]) == {r["step"] - 1} for r in generated)


def test_wrong_weights_on_every_worker_end_the_run_with_that_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    engine = "{name: faulty, weight_fault: swapped_tensors, fault_at_version: 0}"
    run = Run(
        tmp_path,
        TWO_WORKERS,
        plugins("faulty_parts"),
        f"rlax.rollouts.engine={engine}",
        "rlax.launcher.max_restarts=0",
    )
    status, out = run.end()
    assert status == 1
    assert "ended 1 times in a row, the last time with status 1" in out
    assert re.search(r"error: version 0: .* has fingerprint .* was published", out), out


def test_weights_that_are_wrong_are_never_used_and_cost_one_worker(tmp_path, monkeypatch):
    """One way to find them, in a whole run; all faults are tried at the engine."""
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    joined, generated, found = (tmp_path / name for name in ("joined", "generated", "found"))
    run = Run(
        tmp_path,
        TWO_WORKERS,
        # Version 4 is the newest for as long as local-1 needs to load it.
        *held({3: joined, 4: generated, 5: found}),
        plugins("held", "faulty_parts"),
        "rlax.rollouts.engine={name: faulty, weight_fault: wrong_use, fault_at_version: 4, "
        "fault_worker: local-1}",
        "rlax.launcher.max_restarts=0",
        # The groups of steps 4 and 5 are there before step 4 begins, none of them rejected.
        "rlax.staleness.max_staleness=2",
        "rlax.objective.corrections=[{name: truncated_importance_sampling}]",
        "rlax.objective.old_policy=proximal",
        "rlax.curation.filters=[]",
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
