"""A run whose ledger another program has locked, as ``sqlite3`` with an open transaction does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from runs import CONFIG, DEADLINE_S, HELPERS, held, process
from waiting import wait_until

from rlax_plugin.commands.audit import audit
from rlax_plugin.commands.doctor.evidence import gather
from rlax_plugin.commands.doctor.findings import findings
from rlax_plugin.commands.status.place import place_of
from rlax_plugin.liveness.status_file import last_status
from rlax_plugin.records.files import RunFiles

LOCKS = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Another process has a transaction open; yields its id."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCKS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield other.pid
        other.stdin.close()


@pytest.mark.slow
def test_a_run_waits_for_a_ledger_that_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", HELPERS, prepend=os.pathsep)
    run, said, going = tmp_path / "runs/testing", tmp_path / "train.log", tmp_path / "going"
    ledger = run / "ledger.sqlite"
    waits = f"the ledger {ledger} is locked by another process"
    goes_on = "the ledger is not locked any more, and the run goes on"

    def lines(text: str) -> int:
        return " ".join(said.read_text().split()).count(text)

    def train(steps: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
        settings = (*held({2: going}), "rlax.evaluation.problems=0", f"steps={steps}")
        return process(tmp_path, "train", "train", CONFIG, *settings)

    with train(3) as trainer:
        wait_until(lambda: said.exists() and lines("step 1/3"), "step 1", limit_s=DEADLINE_S)
        with locked(ledger) as pid:
            going.touch()
            until = "the wait while it trains"
            wait_until(lambda: lines(waits) or trainer.poll() is not None, until)
            place = place_of(str(run))
            status = wait_until(
                lambda: (one := last_status(place.state_dir)) and one.ledger, "the status"
            )
            assert status.what.startswith(waits) and f" (pid {pid}); " in status.what
            found = findings(gather(place.files, place.section, place.state_dir))
            assert any(one.what.startswith(waits) for one in found), found
        assert trainer.wait(DEADLINE_S) == 0, said.read_text()
        assert (lines(waits), lines(goes_on)) == (1, 1)
    with ExitStack() as lock:
        lock.enter_context(locked(ledger))
        with train(4) as trainer:
            until = "the wait at the start"
            wait_until(lambda: lines(waits) or trainer.poll() is not None, until)
            lock.close()
            assert trainer.wait(DEADLINE_S) == 0, said.read_text()
    assert (lines(waits), lines(goes_on)) == (1, 1)
    report = audit(RunFiles(run))
    assert report.clean and report.figures.steps == 4
