"""Records events: immediately in the ledger, and in the journal while each step trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Judged, TrainBatch
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.unfinished_turns import RecordedTurn


@dataclass(frozen=True, slots=True)
class Commit:
    """A segment of the journal that is on disk.

    Attributes:
      number, checksum: number and checksum of the segment.
      kept: groups whose samples are in its file, except those of its batch.
    """

    number: int
    checksum: str
    kept: tuple[int, ...]


class _Taken(NamedTuple):
    """The events, samples and turns that were added since the last flush."""

    news: list[ev.Event]
    judged: list[Judged]
    turns: list[RecordedTurn]


# At one flush in 50 ms: minutes of a disk that does not write. The run ends before memory does.
_MOST_WAITING = 10_000
_CLOSE_S = 20.0  # for what is still to be written when the run ends
# The ledger may be in the run's directory, and belongs to the process that has that.
_KNOWN_S = 20.0


class Recorder:
    """Takes events on the event loop, and does everything that blocks on its own thread.

    Args:
      on_error: called on that thread with an error, such as a full disk.
      flush_s: seconds that events wait for others, to be written to the ledger together.
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
        self._turns: list[RecordedTurn] = []
        self._flush: asyncio.TimerHandle | None = None
        # Of that thread: what is in the ledger and in no segment yet.
        self._number, self._checksum = 0, journal.START
        self._lines: list[str] = []
        self._rows: list[pa.Table] = []
        self._last_event = 0
        self._failed: BaseException | None = None  # what the first failed write raised

    def go_on_from(
        self,
        number: int,
        checksum: str,
        tail: Sequence[ev.Event] = (),
        rows: Sequence[pa.Table] = (),
    ) -> None:
        """Continues a journal after a segment; the ledger already has ``tail`` and ``rows``."""
        self._number, self._checksum = number, checksum
        self._lines = [ev.encode(event) for event in tail]
        self._rows = list(rows)

    def add(
        self, event: ev.Event, judged: Judged | None = None, turns: Sequence[RecordedTurn] = ()
    ) -> None:
        """Adds an event; with ``Scored`` also the group, with ``Generated`` the turns to keep.

        Turns are kept until the group is scored, so a resumed run need not sample them again.
        """
        self._news.append(event)
        self._turns += turns
        if judged is not None:
            self._judged.append(judged)
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(self._flush_s, self._flush_now)

    async def flush(self) -> None:
        """Writes everything that was added so far to the ledger, before it returns."""
        self._flush_now()
        await self.call(lambda: None)

    def commit(self, step: int, batch: TrainBatch | None) -> Future[Commit]:
        """Begins to write a segment with everything that was added so far.

        It cannot be cancelled: what comes after it must be written after it. An error is given to
        ``on_error`` as well.

        Args:
          step: step of the batch; without a batch, the next step.
          batch: the batch that trains at ``step``; None commits no batch.

        Returns:
          Done once the segment is on disk; its error is an RlaxError if it cannot be written.
        """
        return self._submit(self._commit, self._taken(), step, batch)

    async def call[**P, T](self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function on the recorder's thread, after everything that was added or committed.

        Raises:
          BaseException: ``work`` raised it.
        """
        # Whoever waits may give up; what was begun is finished, and what comes after it waits.
        return await asyncio.shield(asyncio.wrap_future(self._worker.submit(work, *args, **kwargs)))

    def close(self) -> None:
        """Writes the remaining events to the ledger; waits at most 20 s."""
        taken = self._taken()

        def last() -> None:
            try:
                if taken.news:
                    self._to_ledger(taken)
            except Exception as error:  # noqa: BLE001  reported like that of any other write
                self._on_error(error)
            finally:
                self._ledger.close()

        self._worker.finish(last, _CLOSE_S)

    def _taken(self) -> _Taken:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        taken = _Taken(self._news, self._judged, self._turns)
        self._news, self._judged, self._turns = [], [], []
        return taken

    def _flush_now(self) -> None:
        taken = self._taken()
        if taken.news:
            self._submit(self._to_ledger, taken)

    def _submit[**P, T](self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future = self._worker.submit(work, *args, **kwargs)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and (error := future.exception()) is not None:
            self._on_error(error)

    # --- on the thread -------------------------------------------------------------------------

    def _to_ledger(self, taken: _Taken) -> None:
        if self._failed is not None:
            # A ledger with what a group became, but not with its issue, cannot be resumed from.
            raise RlaxError(f"earlier events were not written: {self._failed}")
        try:
            self._add(taken)
        except BaseException as error:
            self._failed = error
            raise

    def _add(self, taken: _Taken) -> None:
        self._files.before_write(_KNOWN_S)
        rows = samples.to_table(taken.judged) if taken.judged else None
        encoded = [(event, ev.encode(event)) for event in taken.news]
        self._last_event = self._ledger.add(encoded, rows, taken.turns)
        self._lines += [line for _, line in encoded]
        if rows is not None:
            self._rows.append(rows)

    def _commit(self, taken: _Taken, step: int, batch: TrainBatch | None) -> Commit:
        if self._failed is not None:
            # A later segment would have the events of this one, but not its batch.
            raise RlaxError(f"an earlier segment was not written: {self._failed}")
        try:
            return self._write(taken, step, batch)
        except BaseException as error:
            self._failed = error
            raise

    def _write(self, taken: _Taken, step: int, batch: TrainBatch | None) -> Commit:
        self._to_ledger(taken)
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
