"""The ledger: all events in a local SQLite database, written as soon as they happen.

The run's directory contains the journal, which is committed once a step and takes precedence on a
resume. The ledger contains the same events and also those since the last commit, so a resume on the
same machine does not lose them. Any SQLite client can look up the state of a prompt in it:
``SELECT * FROM groups``.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.types import Key
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import samples, unfinished_turns
from rlax_plugin.run.state.journal import Segment
from rlax_plugin.run.state.unfinished_turns import RecordedTurn

log = logging.getLogger("rlax.controller")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (config_hash TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
  id INTEGER PRIMARY KEY,
  at REAL NOT NULL,         -- Unix time
  event TEXT NOT NULL,      -- issued, reissued, generated, scored, trained, dropped, ...
  group_id INTEGER,         -- NULL for events about several groups
  body TEXT NOT NULL        -- JSON, as in the journal
);
CREATE INDEX IF NOT EXISTS events_of_a_group ON events (group_id);
-- Samples of groups scored since the last commit, in Arrow's stream format.
CREATE TABLE IF NOT EXISTS samples (event_id INTEGER NOT NULL, body BLOB NOT NULL);
-- Turns of episodes that are not over, see run/state/unfinished_turns.py.
CREATE TABLE IF NOT EXISTS turns (
  id INTEGER PRIMARY KEY, event_id INTEGER NOT NULL, group_id INTEGER NOT NULL,
  sample INTEGER NOT NULL, trajectory INTEGER NOT NULL, turn INTEGER NOT NULL, body BLOB NOT NULL
);
-- Segments of the journal. Events after the last one's last event are not committed yet.
CREATE TABLE IF NOT EXISTS commits (
  segment INTEGER PRIMARY KEY, crc32c TEXT NOT NULL, step INTEGER, last_event INTEGER NOT NULL
);
CREATE VIEW IF NOT EXISTS groups AS
  WITH issued AS (
    SELECT json_extract(e.body, '$.first') + p.key AS group_id, p.value AS prompt_id, e.at AS at
    FROM events e, json_each(e.body, '$.prompts') p WHERE e.event = 'issued'
  ), trained AS (
    SELECT t.value AS group_id, json_extract(e.body, '$.step') AS step
    FROM events e, json_each(e.body, '$.groups') t WHERE e.event = 'trained'
  ), latest AS (
    SELECT group_id, max(id) AS id FROM events
    WHERE group_id IS NOT NULL AND event <> 'discarded' GROUP BY group_id
  )
  SELECT i.group_id, i.prompt_id, i.at AS issued_at, t.step AS trained_at_step,
    CASE WHEN t.step IS NOT NULL THEN 'trained'
         WHEN e.event = 'scored' AND json_extract(e.body, '$.rejected') IS NULL THEN 'accepted'
         WHEN e.event = 'scored' THEN 'rejected'
         ELSE coalesce(e.event, 'issued') END AS state,
    coalesce(json_extract(e.body, '$.rejected'), json_extract(e.body, '$.reason')) AS reason
  FROM issued i LEFT JOIN latest l USING (group_id) LEFT JOIN events e ON e.id = l.id
  LEFT JOIN trained t ON t.group_id = i.group_id;
"""


_LOCKED_S = 300.0
"""Seconds for another process that has the ledger locked: a person who writes with ``sqlite3``.

Nothing is lost meanwhile, as the recorder's queue is longer.
"""


class Ledger:
    """A ledger, which belongs to one thread at a time; every method is one transaction.

    Args:
      path: path on a local disk, as SQLite's locks do not work on NFS.
      run: hash of the run's config; a ledger of another run is emptied.
      note: called with a line and True when a method begins to wait for another process's
        transaction, for at most ``locked_s``, and with a line and False when that has ended.

    Raises:
      RlaxError: the file cannot be opened, or is not a ledger.
    """

    def __init__(
        self,
        path: Path,
        run: str,
        *,
        note: Callable[[str, bool], object] = lambda line, waits: log.warning(line),
        locked_s: float = _LOCKED_S,
    ):
        self._path, self._note, self._locked_s = path, note, locked_s
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # The journal is what must be durable; here the death of the process is survived.
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.executescript(_SCHEMA)
            self._empty_unless_of(run)
        except (OSError, sqlite3.Error) as error:
            raise RlaxError(f"the ledger {path} cannot be opened: {error}") from error

    def _empty_unless_of(self, run: str) -> None:
        with self._transaction():
            known = self._db.execute("SELECT config_hash FROM run").fetchone()
            if known is None or known[0] != run:
                self._empty()
                self._db.execute("DELETE FROM run")
                self._db.execute("INSERT INTO run VALUES (?)", (run,))

    def _empty(self) -> None:
        for table in ("events", "samples", "turns", "commits"):
            self._db.execute(f"DELETE FROM {table}")

    def add(
        self,
        news: Sequence[tuple[ev.Event, str]],
        rows: pa.Table | None,
        turns: Sequence[RecordedTurn] = (),
    ) -> int:
        """Appends events, and the samples of scored groups; returns the last event's id.

        Args:
          news: events, each with its text from ``events.encode``.
          rows: samples, see ``samples.to_table``.
          turns: turns of the events ``Generated`` among them, in order; (): none are kept.
        """
        with self._transaction():
            last = self._insert(news)
            left = iter(turns)
            for number, (event, _) in enumerate(news, last - len(news) + 1):
                if isinstance(event, ev.Generated):
                    self._keep_turns(number, itertools.islice(left, event.samples))
                else:
                    self._forget_turns(event)
            if rows is not None:
                blob = samples.to_arrow(rows)
                self._db.execute("INSERT INTO samples VALUES (?, ?)", (last, blob))
        reached(FaultPoint.LEDGER_WRITTEN)
        return last

    def committed(self, segment: int, crc32c: str, step: int | None, last_event: int) -> None:
        """Notes that the events up to ``last_event`` are in the journal."""
        with self._transaction():
            self._db.execute("DELETE FROM samples WHERE event_id <= ?", (last_event,))
            self._db.execute(
                "INSERT INTO commits VALUES (?, ?, ?, ?)", (segment, crc32c, step, last_event)
            )

    def tail(self, segment: int, crc32c: str) -> tuple[list[ev.Event], list[pa.Table]] | None:
        """Returns the events since a segment, with the rows of the groups scored in them.

        Nothing that came of a batch without a segment was ever shown, so it and all later events
        are removed.

        Returns:
          The events and rows; None if the ledger's last commit is another one, so that its history
          differs from the journal's.
        """
        row = self._db.execute(
            "SELECT segment, crc32c, last_event FROM commits ORDER BY segment DESC LIMIT 1"
        ).fetchone()
        *known, last = row or (0, crc32c, 0)
        if known != [segment, crc32c]:
            return None
        with self._transaction():
            self._db.execute(
                "DELETE FROM events WHERE id >= "
                "(SELECT min(id) FROM events WHERE id > ? AND event = 'trained')",
                (last,),
            )
            found = self._db.execute("SELECT body FROM events WHERE id > ? ORDER BY id", (last,))
            events = [ev.decode(json.loads(body)) for (body,) in found]
            kept = {event.group for event in events if isinstance(event, ev.Scored)}
            blobs = self._db.execute("SELECT event_id, body FROM samples ORDER BY event_id")
            rows = [(i, samples.only(samples.from_arrow(body), kept)) for i, body in blobs]
            self._db.execute("DELETE FROM samples")
            self._db.executemany(
                "INSERT INTO samples VALUES (?, ?)",
                [(i, samples.to_arrow(table)) for i, table in rows if table.num_rows],
            )
            self._db.execute("DELETE FROM turns WHERE event_id NOT IN (SELECT id FROM events)")
        return events, [table for _, table in rows if table.num_rows]

    def rebuild(self, segments: Iterable[tuple[Segment, str]]) -> None:
        """Replaces everything by the events of segments of the journal, which has no turns."""
        with self._transaction():
            self._empty()
            for segment, crc32c in segments:
                last = self._insert([(e, ev.encode(e)) for e in segment.events])
                statement = "INSERT INTO commits VALUES (?, ?, ?, ?)"
                self._db.execute(statement, (segment.number, crc32c, segment.step, last))

    def turns(self) -> list[RecordedTurn]:
        """Returns turns of groups that are not scored, in the order of their events."""
        rows = self._db.execute(
            "SELECT group_id, sample, trajectory, turn, body FROM turns ORDER BY id"
        )
        return [unfinished_turns.from_bytes(Key("train", *where), body) for *where, body in rows]

    def _keep_turns(self, event: int, recorded: Iterable[RecordedTurn]) -> None:
        self._db.executemany(
            "INSERT INTO turns (event_id, group_id, sample, trajectory, turn, body) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(event, *one.key[1:], unfinished_turns.to_bytes(one)) for one in recorded],
        )

    def _forget_turns(self, event: ev.Event) -> None:
        """Removes a discarded turn, or all of a group that was scored, dropped or issued again."""
        match event:
            case ev.Scored() | ev.Reissued() | ev.Dropped():
                self._db.execute("DELETE FROM turns WHERE group_id = ?", (event.group,))
            case ev.Discarded():
                self._db.execute(
                    "DELETE FROM turns WHERE group_id = ? AND sample = ? AND trajectory = ? "
                    "AND turn = ?",
                    (event.group, event.sample, event.trajectory, event.turn),
                )

    def close(self) -> None:
        self._db.close()

    def _insert(self, news: Iterable[tuple[ev.Event, str]]) -> int:
        """Inserts events; returns the id of the last event."""
        now = time.time()
        statement = "INSERT INTO events (at, event, group_id, body) VALUES (?, ?, ?, ?)"
        self._db.executemany(
            statement, [(now, ev.kind(e), ev.group_of(e), line) for e, line in news]
        )
        (last,) = self._db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
        return last

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db, self._path, self._note, self._locked_s)


class _Transaction:
    """A transaction of the database; errors such as a full disk name the ledger's path."""

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path,
        note: Callable[[str, bool], object],
        locked_s: float,
    ):
        self._db, self._path, self._note, self._locked_s = db, path, note, locked_s

    def __enter__(self) -> None:
        end_s, waited = time.monotonic() + self._locked_s, False
        while (error := self._begin()) is not None:  # SQLite itself has waited for 5 s
            if time.monotonic() >= end_s:
                raise RlaxError(
                    f"{self._unwritable(error)} for {self._locked_s:g} s: end the process that has "
                    f"a transaction open ({self._holder})"
                ) from error
            if not waited:
                line = (
                    f"the ledger {self._path} is locked by another process, such as sqlite3 with "
                    f"an open transaction ({self._holder}); the run waits for it, for at most "
                    f"{self._locked_s:g} s"
                )
                self._note(line, True)
            waited = True
        if waited:
            self._note("the ledger is not locked any more, and the run goes on", False)

    def _begin(self) -> sqlite3.Error | None:
        """Begins; returns the error if another process has the database locked.

        Raises:
          RlaxError: it failed otherwise.
        """
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says why
            if code != sqlite3.SQLITE_BUSY:
                raise self._unwritable(error) from error
            return error
        return None

    @property
    def _holder(self) -> str:
        with suppress(OSError):  # no Linux
            # Of a WAL's database it is the index that is locked.
            stats = [os.stat(f"{self._path}{end}") for end in ("", "-shm")]
            files = {f"{os.major(s.st_dev):02x}:{os.minor(s.st_dev):02x}:{s.st_ino}" for s in stats}
            for line in Path("/proc/locks").read_text().splitlines():
                match line.split():
                    case [_, "POSIX", _, "WRITE", pid, file, *_] if file in files:
                        return f"pid {pid}"
        command = shlex.join(("fuser", "-v", str(self._path.absolute())))
        return f"{command} lists the processes that use it"

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
                return
            except sqlite3.Error as failed:
                error = failed
        with suppress(sqlite3.Error):  # after some errors SQLite has done it already
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise self._unwritable(error) from error

    def _unwritable(self, error: sqlite3.Error) -> RlaxError:
        return RlaxError(f"the ledger {self._path} cannot be written: {error}")
