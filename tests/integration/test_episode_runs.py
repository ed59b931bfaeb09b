"""An episode of several turns outlives the process of its trainer."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from processes import finished
from runs import CONFIG, DEADLINE_S

from rlax_plugin.base.files.packing import unpack
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.tools.commands.audit import audit

SETTINGS = (
    "steps=3",
    "rlax.deterministic=true",
    "rlax.trainer.checkpoint_every=2",
    "rlax.evaluation.problems=0",
    "rlax.episodes.max_tokens=30",
    # Longer than the ledger waits, so that each round of turns is recorded by itself.
    "rlax.rollouts.engine={name: scripted, latency_s: 0.25}",
    # Every answer is an expression without a value: each episode has three turns.
    "rlax.environment={name: calculator, begin: '', end: '', result: '0', after: '1', "
    "max_calls: 2}",
)


def train(directory: Path, kill_at: str = "") -> RunFiles:
    directory.mkdir(exist_ok=True)
    command = ("train", CONFIG, *SETTINGS)
    done = finished(*command, cwd=directory, kill_at=kill_at, timeout_s=DEADLINE_S)
    assert done.returncode == (-signal.SIGKILL if kill_at else 0), done.stdout + done.stderr
    return RunFiles(directory / "runs/testing")


def turns_in_ledger(directory: Path) -> list[tuple[int, int]]:
    """Group and turn of each recorded turn, of groups that are not scored."""
    with closing(sqlite3.connect(directory / "runs/testing/ledger.sqlite")) as ledger:
        return ledger.execute("SELECT group_id, turn FROM turns").fetchall()


def computed(files: RunFiles) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Every batch, but for who generated it and at which attempt; and the last weights."""
    tables = map(pq.read_table, sorted(Path(files.location("")).glob("samples/*/*.parquet")))
    batches = [
        {name: value for name, value in row.items() if name not in ("workers", "attempt")}
        for table in tables
        for row in table.to_pylist()
        if row["state"] == "trained"
    ]
    last = max(files.names("checkpoints"), key=lambda name: int(name.partition(".")[0]))
    arrays = unpack(files.get(f"checkpoints/{last}"))
    return batches, {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.ci
def test_a_trainer_killed_between_turns_goes_on_with_those_it_has(tmp_path: Path) -> None:
    """Only a process can be killed with turns in its ledger that no event has."""
    undisturbed = train(tmp_path / "undisturbed")
    for number in (4, 5, 3, 6):
        directory = tmp_path / str(number)
        train(directory, kill_at=f"ledger-written:{number}")
        recorded = turns_in_ledger(directory)
        if {turn for _, turn in recorded} >= {0, 1}:
            break
    assert {turn for _, turn in recorded} >= {0, 1}, "no group was between turns"
    resumed = train(directory)
    batches, _ = computed(resumed)
    assert computed(resumed) == computed(undisturbed) and len(batches) == 3 * 16
    assert {len(row["seeds"]) for row in batches} == {3}
    report = audit(resumed)
    assert report.violation is None, report.violation
    assert report.figures.turns_discarded == 0
    events = [event for segment, _ in journal.read(resumed) for event in segment.events]
    reissued = {event.group for event in events if isinstance(event, ev.Reissued)}
    assert not reissued & {group for group, _ in recorded}
