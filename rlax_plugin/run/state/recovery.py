"""Restores a run from its snapshot, its journal, and the events that only the ledger has.

The trainer's checkpoint is the only commit point. The snapshot that was written before it gives the
controller's state at that step. The segments after it are applied step by step, as the trainer
requests the batches that they commit, so that the state at every step is the original one. The
events after the last segment come from the ledger, if it has the same history.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import Judged, ScoredGroup, TrainBatch, group_of
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.journal import JournalError, Segment
from rlax_plugin.run.state.ledger import Ledger
from rlax_plugin.run.state.read_samples import RecordedGroup, as_batch, from_table
from rlax_plugin.run.state.recorder import Commit, Recorder
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import RunState
from rlax_plugin.run.state.snapshots import SnapshotError, read_snapshot

log = logging.getLogger("rlax.controller")

_COPY = "Bring the file back from a copy of the run directory"


@dataclass(frozen=True, slots=True)
class ReplayInterval:
    """Events between two batches, with the samples of the groups that were scored in them.

    Attributes:
      segment, checksum: of the journal, at the end of the interval.
      events: in order; ``Trained`` is among the last if they lead to a batch.
      judged: group id -> the scored group, accepted or rejected.
      segment_of: group id -> the segment with its samples, unless only a batch has them.
      batch: of the step that the interval leads to; None: it leads to none.
    """

    segment: int
    checksum: str
    events: tuple[ev.Event, ...]
    judged: Mapping[int, Judged]
    segment_of: Mapping[int, int]
    batch: TrainBatch | None = None

    @property
    def scored(self) -> list[Judged]:
        return [self.judged[e.group] for e in self.events if isinstance(e, ev.Scored)]

    def apply(self, run_state: RunState) -> None:
        """Applies the events to a run state."""
        for event in self.events:
            run_state.apply(
                event, group_of(self.judged[event.group]) if isinstance(event, ev.Scored) else None
            )
        run_state.segment_of |= {
            group: n for group, n in self.segment_of.items() if group in run_state.ready
        }


class Recovery:
    """The state and the records that a resume has found; blocking.

    Attributes:
      step: see below.
      segment, checksum: the journal segment at whose end the checkpoint's state holds.
      metrics: those of the checkpoint's step that the snapshot has.
      observers: the states of the observers in the snapshot.
      turns: of episodes that were not over.
      anything: True if the run had begun before.

    Args:
      step: of the checkpoint that the trainer restored; 0: it starts from its first weights.
      run_state: is brought to that step.
      recorder: continues from the end of the journal.
      checkpoints: returns step -> name below ``checkpoints/``, for messages.
      found_damaged: called with a sentence about each damaged record that is not needed.

    Raises:
      TrainingError: no whole snapshot belongs to that checkpoint; says what to do.
      JournalError: the journal is damaged before its end; says what to do.
    """

    def __init__(
        self,
        step: int,
        *,
        run_state: RunState,
        files: RunFiles,
        ledger: Ledger,
        recorder: Recorder,
        checkpoints: Callable[[], Mapping[int, str]] = dict,
        found_damaged: Callable[[str], object] = log.warning,
    ):
        self._files, self.step, self._found_damaged = files, step, found_damaged
        self.segment, self.checksum = 0, journal.START
        self.metrics: dict[str, float] = {}
        self.observers: dict[str, Any] = {}
        if step:
            try:
                document = _restore_snapshot(step, run_state, files)
            except (SnapshotError, JournalError) as error:
                remedy = _without_checkpoint(step, files, checkpoints())
                raise TrainingError(f"{error}. {_COPY}{remedy}") from error
            self.segment, self.checksum = document["segment"], document["checksum"]
            self.metrics = document["metrics"]
            self.observers = document["observers"]
        found = _segments(files, self.segment, self.checksum, found_damaged)
        self._stretches: dict[int, list[tuple[Segment, str]]] = {}
        self._rest: list[tuple[Segment, str]] = []
        for segment, checksum in found:
            self._rest.append((segment, checksum))
            if segment.step is not None:
                self._stretches[segment.step] = self._rest
                self._rest = []
        number, checksum = (
            (found[-1][0].number, found[-1][1]) if found else (self.segment, self.checksum)
        )
        _remove_uncommitted(files, number)
        self._tail = self._of_ledger(ledger, found, number, checksum)
        self.turns = ledger.turns()
        reached(FaultPoint.RECOVERED)
        recorder.go_on_from(number, checksum, *self._tail)
        self.anything = step > 0 or bool(found) or bool(self._tail[0])

    def _of_ledger(
        self, ledger: Ledger, found: list[tuple[Segment, str]], number: int, checksum: str
    ) -> tuple[list[ev.Event], list[pa.Table]]:
        """Returns events not yet in the journal.

        A ledger with a different history is rewritten from the journal, without turns.
        """
        tail = ledger.tail(number, checksum)
        if tail is not None:
            return tail
        try:
            ledger.rebuild(journal.read(self._files, until=number))
        except JournalError as error:  # of a segment that only queries of the ledger need
            self._found_damaged(f"the ledger has no events up to segment {self.segment}: {error}")
            ledger.rebuild(found)
        return [], []

    def holds(self, step: int) -> bool:
        """True if the batch of a step is recorded."""
        return step in self._stretches

    @property
    def last_step(self) -> int | None:
        """The last step after the checkpoint whose batch is recorded; None if there is none."""
        return max(self._stretches, default=None)

    def load(self, step: int) -> ReplayInterval:
        """Returns the events that led to the batch of a step.

        Raises:
          JournalError: its files differ from the committed ones; says what to do.
        """
        return self._load(self._stretches[step])

    def load_rest(self) -> ReplayInterval:
        """Returns the events after the last recorded batch."""
        stretch = self._load(self._rest)
        events, rows = self._tail
        judged = {one.group.id: one.judged for table in rows for one in from_table(table)}
        return dataclasses.replace(
            stretch, events=stretch.events + tuple(events), judged={**stretch.judged, **judged}
        )

    def _load(self, segments: Sequence[tuple[Segment, str]]) -> ReplayInterval:
        judged: dict[int, Judged] = {}
        segment_of: dict[int, int] = {}
        recorded: list[RecordedGroup] = []
        for segment, _ in segments:
            try:
                recorded = journal.read_samples(self._files, segment)
            except JournalError as error:
                raise _with_remedy(error, self._files, self.segment) from error
            for one in recorded:
                judged.setdefault(one.group.id, one.judged)
                if one.advantages is None:
                    segment_of[one.group.id] = segment.number
        last, checksum = segments[-1] if segments else (None, self.checksum)
        step = None if last is None else last.step
        return ReplayInterval(
            segment=self.segment if last is None else last.number,
            checksum=checksum,
            events=tuple(event for segment, _ in segments for event in segment.events),
            judged=judged,
            segment_of=segment_of,
            batch=None if step is None else as_batch(step, recorded),
        )


def _restore_snapshot(step: int, run_state: RunState, files: RunFiles) -> dict[str, Any]:
    document, rates = read_snapshot(files, step, run_state.prompts)

    def load(segment_of: Mapping[int, int]) -> dict[int, ScoredGroup]:
        groups = {}
        for number in sorted(set(segment_of.values())):
            for one in journal.read_samples(files, journal.read_one(files, number)):
                if segment_of.get(one.group.id) == number:
                    groups[one.group.id] = one.group
        return {group_id: groups[group_id] for group_id in segment_of}

    run_state.restore(document["run_state"], rates, load)
    return document


def _segments(
    files: RunFiles, after: int, checksum: str, found_damaged: Callable[[str], object]
) -> list[tuple[Segment, str]]:
    """Returns the segments after a snapshot. A damaged last one was never committed: ignored.

    Raises:
      JournalError: another one is damaged; says what to do.
    """
    found: list[tuple[Segment, str]] = []
    try:
        found.extend(journal.read(files, after, checksum))
        if found:
            journal.read_samples(files, found[-1][0])
    except JournalError as error:
        if error.number < journal.last_number(files):
            raise _with_remedy(error, files, after) from error
        lost = "the last segment does not count, and what it recorded is generated again"
        found_damaged(f"{lost}: {error}")
        found = [pair for pair in found if pair[0].number < error.number]
    return found


def _with_remedy(error: JournalError, files: RunFiles, after: int) -> JournalError:
    """Returns an error about a segment after a snapshot's, with what can be done about it.

    Without the damaged segment and all later ones, the journal is one that ended earlier: what it
    recorded has no effect on the weights of the checkpoint.
    """
    first = files.location(journal.segment_name(max(error.number, after + 1)))
    return JournalError(
        error.number,
        f"{error.problem}. {_COPY}; without a copy, remove {first} and all segments with higher "
        "numbers: what they recorded is then generated and trained again",
    )


def _without_checkpoint(step: int, files: RunFiles, checkpoints: Mapping[int, str]) -> str:
    """Returns the remedy where a checkpoint's records cannot be used: the checkpoint before it."""
    if step not in checkpoints:
        return ""
    own = files.location(f"checkpoints/{checkpoints[step]}")
    older = max((one for one in checkpoints if one < step), default=0)
    there = f"the checkpoint of step {older}" if older else "its first weights"
    return (
        f"; without a copy, move {own} out of that directory, and the same command continues from "
        f"{there}"
    )


def _remove_uncommitted(files: RunFiles, number: int) -> None:
    """Removes samples without a segment, as a killed process leaves, and a segment that is damaged.

    Nothing replaces a segment that exists.
    """
    for later in journal.numbers(files, journal.SAMPLES, above=number):
        files.delete(journal.samples_name(later))
    for later in journal.numbers(files, journal.DIRECTORY, above=number):
        files.delete(journal.segment_name(later))


class RecordedBatches:
    """Brings the run state from one recorded batch to the next, as the trainer requests them.

    Attributes:
      position: the journal segment at whose end the run state holds.
      left: True if some batches were not handed out yet.
      resumed_from: the step of the checkpoint that the run continues from; None: it begins.
    """

    def __init__(self, recovery: Recovery, history: RunHistory):
        self._recovery, self._history = recovery, history
        self.position = Commit(recovery.segment, recovery.checksum, ())
        self.left = recovery.last_step is not None
        self.resumed_from = recovery.step if recovery.anything else None

    def holds(self, step: int) -> bool:
        """True if the batch of a step is recorded."""
        return self._recovery.holds(step)

    async def batch(self, step: int) -> tuple[TrainBatch, StepStats]:
        """Returns the batch of ``step``, and the statistics of the events that led to it.

        Raises:
          JournalError: its files differ from the committed ones.
        """
        found = await self._history.read(self._recovery.load, step)
        found.apply(self._history.run_state)
        self.position = Commit(found.segment, found.checksum, ())
        self.left = step != self._recovery.last_step
        stats = StepStats(found.scored, stage=self._history.run_state.stage)
        for event in found.events:
            stats.count(event)
        assert found.batch is not None
        return found.batch, stats

    async def apply_rest(self) -> list[Judged]:
        """Applies the events after the last recorded batch; returns the groups scored in them."""
        rest = await self._history.read(self._recovery.load_rest)
        rest.apply(self._history.run_state)
        return rest.scored
