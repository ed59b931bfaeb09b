"""Writes down what happens: at once into the ledger, before each train step into the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rlax_plugin.concurrency.threads import BackgroundWorker
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal, samples
from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.ledger import Ledger
from rlax_plugin.types import Judged, TrainBatch


@dataclass(frozen=True, slots=True)
class Commit:
    """A segment that was written.

    Attributes:
      number, checksum: the segment's.
      kept: groups whose samples are in its file, those of its batch apart.
    """

    number: int
    checksum: str
    kept: tuple[int, ...]


# At one flush in 50 ms: minutes of a disk that does not write. The run ends before memory does.
_MOST_WAITING = 10_000
_CLOSE_S = 20.0  # for what is still to be written when the run ends


class Recorder:
    """Takes events on the event loop; everything that blocks happens on one thread of its own.

    Args:
      on_error: called on that thread with what went wrong: a full disk is no silence.
      flush_s: events wait this long for others, to go into the ledger together.
    """

    def __init__(
        self,
        files: RunFiles,
        ledger: Ledger,
        on_error: Callable[[BaseException], object],
        flush_s: float = 0.05,
    ):
        self._files, self._ledger, self._on_error = files, ledger, on_error
        self._flush_s = flush_s
        self._worker = BackgroundWorker("the recorder", _MOST_WAITING)
        self._news: list[ev.Event] = []
        self._judged: list[Judged] = []
        self._flush: asyncio.TimerHandle | None = None
        # Of that thread: what is in the ledger and in no segment yet.
        self._number, self._checksum = 0, journal.START
        self._lines: list[str] = []
        self._rows: list[pa.Table] = []
        self._last_event = 0

    def go_on_from(
        self,
        number: int,
        checksum: str,
        tail: Sequence[ev.Event] = (),
        rows: Sequence[pa.Table] = (),
    ) -> None:
        """Continues a journal after a segment; ``tail`` and ``rows`` are in the ledger already."""
        self._number, self._checksum = number, checksum
        self._lines = [ev.encode(event) for event in tail]
        self._rows = list(rows)

    def add(self, event: ev.Event, judged: Judged | None = None) -> None:
        """Takes an event, and with ``Scored`` the group."""
        self._news.append(event)
        if judged is not None:
            self._judged.append(judged)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(self._flush_s, self._flush_now)

    async def commit(self, step: int, batch: TrainBatch | None) -> Commit:
        """Writes a segment with everything that was added so far; on disk when it returns.

        Args:
          step: the batch's, or without one the step that is next.
          batch: what trains at ``step``; None commits no batch.

        Raises:
          RlaxError: it cannot be written.
        """
        news, judged = self._taken()
        # Whoever waits may give up; what was taken must be written before what comes after it.
        work = self._submit(self._commit, news, judged, step, batch)
        return await asyncio.shield(asyncio.wrap_future(work))

    async def call[**P, T](self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does other work on files on the recorder's thread, after what was added or committed.

        Raises:
          BaseException: what ``work`` raised.
        """
        # Whoever waits may give up; what was begun is finished, and what comes after it waits.
        return await asyncio.shield(asyncio.wrap_future(self._worker.submit(work, *args, **kwargs)))

    def close(self) -> None:
        """Writes what is left into the ledger; waits 20 s at most."""
        news, judged = self._taken()

        def last() -> None:
            try:
                if news:
                    self._to_ledger(news, judged)
            except Exception as error:  # noqa: BLE001  reported like that of any other write
                self._on_error(error)
            finally:
                self._ledger.close()

        self._worker.finish(last, _CLOSE_S)

    def _taken(self) -> tuple[list[ev.Event], list[Judged]]:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        news, judged, self._news, self._judged = self._news, self._judged, [], []
        return news, judged

    def _flush_now(self) -> None:
        news, judged = self._taken()
        if news:
            self._submit(self._to_ledger, news, judged)

    def _submit[**P, T](self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = self._worker.submit(work, *args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_error(error)

    # --- on the thread -------------------------------------------------------------------------

    def _to_ledger(self, news: list[ev.Event], judged: list[Judged]) -> None:
        rows = samples.to_table(judged) if judged else None
        encoded = [(event, ev.encode(event)) for event in news]
        self._last_event = self._ledger.add(encoded, rows)
        self._lines += [line for _, line in encoded]
        if rows is not None:
            self._rows.append(rows)

    def _commit(
        self,
        news: list[ev.Event],
        judged: list[Judged],
        step: int,
        batch: TrainBatch | None,
    ) -> Commit:
        self._to_ledger(news, judged)
        rows = samples.joined(self._rows)
        in_batch = {group.id for group in batch.groups} if batch else set[int]()
        scored = dict.fromkeys(rows.column("group").to_pylist())
        kept = tuple(group_id for group_id in scored if group_id not in in_batch)
        checksum = journal.write(
            self._files,
            number=self._number + 1,
            previous=self._checksum,
            step=step,
            batch=None if batch is None else samples.of_batch(batch),
            others=samples.select(rows, kept) if kept else None,
            events=self._lines,
        )
        self._number, self._checksum = self._number + 1, checksum
        self._ledger.committed(
            self._number, checksum, None if batch is None else step, self._last_event
        )
        self._lines, self._rows = [], []
        reached(FaultPoint.COMMIT_ENDED)
        return Commit(self._number, checksum, kept)
