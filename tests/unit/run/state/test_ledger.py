"""The ledger: what no segment of the journal holds yet, and what anybody may ask of a run."""

import functools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from histories import History, bits, group, rejected, scored
from waiting import LIMIT_S, wait_until

from rlax_plugin.base.concurrency.threads import on_daemon
from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Judged
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.journal import JournalError, Segment
from rlax_plugin.run.state.ledger import Ledger, _Transaction
from rlax_plugin.run.state.read_samples import from_table


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "state/ledger.sqlite", "hash")
    yield ledger
    ledger.close()


def add(ledger: Ledger, *events: ev.Event, judged: tuple[Judged, ...] = ()) -> int:
    rows = samples.to_table(judged) if judged else None
    return ledger.add([(event, ev.encode(event)) for event in events], rows)


def tail(ledger: Ledger, number: int = 0, checksum: str = journal.START) -> tuple[list, list]:
    found = ledger.tail(number, checksum)
    assert found is not None
    events, tables = found
    return events, [one.judged for table in tables for one in from_table(table)]


def states(path: Path) -> dict[int, tuple[Any, ...]]:
    """What any SQLite client sees: group -> prompt, state, reason, step."""
    database = sqlite3.connect(path)
    query = "SELECT group_id, prompt_id, state, reason, trained_at_step FROM groups"
    found = {row[0]: tuple(row[1:]) for row in database.execute(query)}
    database.close()
    return found


def test_the_tail_is_what_no_segment_holds(ledger: Ledger) -> None:
    first, second = group(0, 0, "a"), rejected(1, 0, "b", "too easy")
    assert tail(ledger) == ([], [])
    issued = ev.Issued(0, ("a", "b", "c"), 0)
    last = add(ledger, issued, *scored(first), judged=(first,))
    add(ledger, *scored(second), judged=(second,))
    events, rows = tail(ledger)
    assert events == [issued, *scored(first), *scored(second)]
    assert bits(rows) == bits([first, second])
    ledger.committed(1, "11111111", None, last)
    events, rows = tail(ledger, 1, "11111111")
    assert events == scored(second) and bits(rows) == bits([second])


def test_a_ledger_of_another_past_has_no_tail(ledger: Ledger) -> None:
    last = add(ledger, ev.Issued(0, ("a",), 0))
    ledger.committed(1, "11111111", None, last)
    add(ledger, ev.Reissued(0, 2, "worker lost", Ending.WORKER_LOST))
    assert ledger.tail(0, journal.START) is None  # the run's directory was emptied
    assert ledger.tail(1, "22222222") is None  # another machine continued the run
    assert ledger.tail(2, "11111111") is None
    assert ledger.tail(1, "11111111") is not None


def test_a_batch_that_no_segment_commits_never_was(ledger: Ledger) -> None:
    before, after = group(0, 0, "a"), group(2, 0, "c")
    issued = ev.Issued(0, ("a", "b", "c"), 0)
    add(ledger, issued, *scored(before), ev.Trained(1, (0,), 1), judged=(before,))
    add(ledger, *scored(after), judged=(after,))
    for _ in range(2):  # forgotten for good
        events, rows = tail(ledger)
        assert events == [issued, *scored(before)]
        assert bits(rows) == bits([before])


def test_the_ledger_outlives_its_process_and_not_its_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    killed = Ledger(path, "hash")  # never closed
    add(killed, ev.Issued(0, ("a",), 0))
    again = Ledger(path, "hash")
    assert tail(again)[0] == [ev.Issued(0, ("a",), 0)]
    again.close()
    other = Ledger(path, "another config")
    assert tail(other) == ([], [])
    other.close()
    killed.close()


def test_the_ledger_is_rebuilt_from_the_journal(tmp_path: Path) -> None:
    run = RunFiles(tmp_path / "run")
    History().write(run)
    path = tmp_path / "state/ledger.sqlite"
    ledger = Ledger(path, "hash")
    add(ledger, ev.Issued(0, ("x", "y"), 0))  # of another past
    segments = list(journal.read(run))
    ledger.rebuild(segments)
    last, checksum = segments[-1]
    assert tail(ledger, last.number, checksum) == ([], [])
    reason = "its worker was quarantined"
    assert states(path) == {
        0: ("a", "trained", None, 1),
        1: ("b", "trained", None, 1),
        2: ("c", "rejected", "too easy", None),
        3: ("d", "trained", None, 2),
        4: ("e", "trained", None, 2),
        5: ("f", "trained", None, 3),
        6: ("g", "dropped", reason, None),
        7: ("h", "trained", None, 3),
        8: ("a", "reissued", "the trainer was restarted", None),
        9: ("b", "accepted", None, None),
        10: ("c", "issued", None, None),
    }
    add(ledger, ev.Generated(8, 2, ("w0",), 1, 1, 2, 5))
    assert states(path)[8] == ("a", "generated", None, None)
    ledger.close()


def test_an_interrupted_transaction_changes_nothing(ledger: Ledger) -> None:
    add(ledger, ev.Issued(0, ("a",), 0))

    def breaks() -> Iterator[tuple[Segment, str]]:
        yield Segment(1, journal.START, None, (), (ev.Resumed(0),)), "11111111"
        raise JournalError(2, "is missing")

    with pytest.raises(JournalError):
        ledger.rebuild(breaks())
    assert tail(ledger)[0] == [ev.Issued(0, ("a",), 0)]


def test_what_is_no_ledger_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"some other file, long enough to be looked at" * 100)
    with pytest.raises(RlaxError, match=r"ledger\.sqlite cannot be opened"):
        Ledger(path, "hash")


@pytest.mark.parametrize("failing", ["BEGIN IMMEDIATE", "INSERT", "COMMIT"])
def test_a_full_disk_is_an_error_that_names_the_ledger(failing: str) -> None:
    """SQLite reports it at any statement, and may have rolled the transaction back by itself."""
    done = list[str]()

    class Full:
        def execute(self, statement: str) -> None:
            done.append(statement)
            if statement == failing:
                raise sqlite3.OperationalError("database or disk is full")
            if statement == "ROLLBACK":
                raise sqlite3.OperationalError("cannot rollback - no transaction is active")

    full: Any = Full()
    reason = r"^the ledger /run/ledger\.sqlite cannot be written: database or disk is full$"
    transaction = _Transaction(full, Path("/run/ledger.sqlite"), lambda *_: None, 1.0)
    with pytest.raises(RlaxError, match=reason), transaction:
        full.execute("INSERT")
    assert done[-1] == ("BEGIN IMMEDIATE" if failing == "BEGIN IMMEDIATE" else "ROLLBACK")


def test_a_transaction_of_another_process_is_waited_for(tmp_path, monkeypatch) -> None:
    path, notes = tmp_path / "ledger.sqlite", list[tuple[str, bool]]()
    quickly = functools.partial(sqlite3.connect, timeout=0.1)  # else SQLite waits for 5 s, twice
    monkeypatch.setattr(sqlite3, "connect", quickly)
    ledger = Ledger(path, "hash", note=lambda *note: notes.append(note))
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    adding = on_daemon(lambda: add(ledger, ev.Issued(0, ("a",), 0)), "adding")
    ((locked, waits),) = wait_until(lambda: list(notes), "the note")
    assert f"the ledger {path} is locked by another process" in locked and waits
    assert f"(pid {os.getpid()}); the run waits" in locked  # ``other`` is of this process
    other.execute("COMMIT")
    assert adding.result(LIMIT_S) == 1
    assert notes[1:] == [("the ledger is not locked any more, and the run goes on", False)]
    other.execute("BEGIN IMMEDIATE")
    ledger.close()
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=FileNotFoundError))  # /proc/locks
    wanted = r"written: database is locked for 0 s: end the process that .* \(fuser -v .* lists"
    with pytest.raises(RlaxError, match=wanted):
        Ledger(path, "hash", locked_s=0.0)
    other.close()
