"""The flow from prompts to batches: issue, score, filter, and take the oldest first.

This module runs the concurrent parts. ``Issuing``, ``Trips``, ``Buffer`` and ``RecordedBatches``
make the decisions, which ``RunHistory`` applies and records.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import (
    Judged,
    Rejected,
    Request,
    ScoredGroup,
    TrainBatch,
    group_of,
    staleness_of,
)
from rlax_plugin.rollout.fleet.scaling import Decision
from rlax_plugin.run.controller.buffer import Buffer
from rlax_plugin.run.controller.chosen import ChosenSelection
from rlax_plugin.run.controller.issuing import Issuing
from rlax_plugin.run.controller.observers import Observers
from rlax_plugin.run.controller.trips import Trips
from rlax_plugin.run.controller.turns import Turns
from rlax_plugin.run.metrics.spans import Span
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.journal import START
from rlax_plugin.run.state.recorder import Commit
from rlax_plugin.run.state.recovery import RecordedBatches, Recovery
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.run_state import RunState, Saved
from rlax_plugin.training.objective import advantages
from rlax_plugin.training.objective.advantages import AdvantageSlot

_MOST_AT_ONCE = 512  # samples whose advantages are computed on the event loop: a few milliseconds


class Flow:
    """Issues groups, has them scored and accepted, and hands out batches in issue order.

    Lives on the controller's event loop. It issues groups only after ``start``. On a
    resume it first hands out the recorded batches. Until the last of them it is not live: it keeps
    new events, and records them afterwards.

    Args:
      advantage_slots: environment -> slot that is called with its groups of each new batch.
      selection: called with the batch once it has advantages; None: every sample trains once.
      observers: receive again the recorded events that came after their restored state.
      supervision: runs the groups; a failure of one fails the run.

    Attributes:
      live: True once the last recorded batch was handed out.
      show_first: called with a text such as "3 of 8 groups" until the first batch is complete.
    """

    def __init__(
        self,
        *,
        history: RunHistory,
        issuing: Issuing,
        trips: Trips,
        turns: Turns,
        buffer: Buffer,
        advantage_slots: Mapping[str, AdvantageSlot],
        observers: Observers,
        supervision: Supervision,
        selection: ChosenSelection | None = None,
    ):
        self._history, self._issuing = history, issuing
        self._trips, self._turns, self._buffer = trips, turns, buffer
        self._advantage_slots, self._selection = advantage_slots, selection
        self._observers = observers
        self._supervision = supervision
        self._under_way: dict[int, asyncio.Task[None]] = {}  # group id -> its trip
        self._left_open: list[int] = []  # in flight when an earlier process ended, oldest first
        self._new: Iterator[Request] | None = None  # chosen groups that are not begun yet
        self._changed = asyncio.Event()
        self._recorded: RecordedBatches | None = None  # by ``start``
        self.live, self._ended = False, False
        self._making = False  # True while a batch is asked for, and not there yet
        self.show_first: Callable[[str], None] | None = None
        self._early: list[ev.Published | ev.Resized] = []  # before this was live
        self._distrusted: set[str] = set()  # workers that were quarantined before this was live

    @property
    def run_state(self) -> RunState:
        """The current state of the run."""
        return self._history.run_state

    @property
    def ready(self) -> str:
        """The part of the next batch that is ready, such as ``3 of 8 groups``."""
        # A large batch is laid out, and its advantages computed, beside the event loop.
        made = ", of which the batch is being made" * (self._making and self._buffer.complete)
        return self._buffer.ready + made

    async def start(self, recovery: Recovery) -> None:
        """Begins to hand out batches; recorded ones first, unchanged."""
        self._turns.take_up(recovery.turns)
        recorded = self._recorded = RecordedBatches(recovery, self._history)
        if not recorded.left:
            await self._go_live(recorded)
        self._changed.set()

    async def _go_live(self, recorded: RecordedBatches) -> None:
        self._tell_again(await recorded.apply_rest())
        self.live, self._left_open = True, sorted(self._history.open)
        for worker in self._distrusted:  # it outlived an earlier process, and has failed since
            self._turns.distrust(worker)
            self._buffer.drop_samples_of(worker)
        if recorded.resumed_from is not None:
            self._history.note(ev.Resumed(recorded.resumed_from))
        for event in self._early:
            self._history.note(event)
        self.wake()

    def _tell_again(self, scored: Sequence[Judged]) -> None:
        """Reports recorded groups to observers whose restored state does not include them."""
        for judged in scored:
            rejected = judged.reason if isinstance(judged, Rejected) else None
            self._observers.notify_again("group_scored", group=group_of(judged), rejected=rejected)

    def published(self, version: int, digest: str) -> None:
        """Called when a weight version is visible to workers."""
        self._note(ev.Published(version, digest))

    def resized(self, before: int, decision: Decision) -> None:
        """Called when the number of workers is changed."""
        self._note(ev.Resized(before, decision.workers, decision.reason))

    def _note(self, event: ev.Published | ev.Resized) -> None:
        if self.live:
            self._history.note(event)
            self.wake()
        else:
            self._early.append(event)  # recorded after what is recorded already

    def distrust(self, worker: str) -> None:
        """Drops a worker's samples, except those in batches that are already recorded."""
        if self.live:
            self._turns.distrust(worker)
            self._buffer.drop_samples_of(worker)
            self.wake()
        else:
            self._distrusted.add(worker)

    # --- groups --------------------------------------------------------------------------------

    def wake(self) -> None:
        """Issues the groups that may be issued now; called whenever that may have changed."""
        if not self.live or self._ended or self._supervision.failed or self._supervision.closing:
            return
        try:
            left, self._left_open = self._left_open, []
            for group_id in left:
                if group_id not in self._history.open:
                    continue
                if (request := self._issuing.left_open(group_id)) is None:
                    self._left_open.append(group_id)
                else:
                    self._begin(request)
            self._begin_new()
        except Exception as error:  # noqa: BLE001  stops the run; the caller's work must not be torn
            self._supervision.fail(error)

    def _begin_new(self) -> None:
        """Issues new groups: some now, and the others once the event loop has seen to the rest."""
        self._new = self._issuing.new() if self._new is None else self._new
        for count, request in enumerate(self._new, 1):
            self._begin(request)
            if count == self._issuing.at_once:
                asyncio.get_running_loop().call_soon(self.wake)
                return
        self._new = None

    def _begin(self, request: Request) -> None:
        stats = self._history.stats
        stats.first_issued_s = min(stats.first_issued_s, time.perf_counter())
        self._under_way[request.key.group] = self._supervision.spawn(self._one_group(request))

    async def _one_group(self, request: Request) -> None:
        await self._trips.run(request)
        del self._under_way[request.key.group]
        self._changed.set()
        self.wake()
        self._trips.next_turn()

    def end(self) -> None:
        """Cancels the groups under way and issues no more; the run state keeps them as open."""
        self._ended = True
        for trip in self._under_way.values():
            trip.cancel()

    # --- batches -------------------------------------------------------------------------------

    async def batch(self, step: int) -> tuple[TrainBatch, StepStats]:
        """Returns the batch of ``step``, oldest issued group first, and the step's statistics.

        A batch that an earlier process committed is returned unchanged. A new one gets its
        advantages, which may depend on all of its groups, and is committed while it trains: what
        the step makes must not be shown to anyone before ``StepStats.committed`` is done.

        Raises:
          RlaxError: the error that made the flow fail.
        """
        return await self._supervision.unless_failed(self._batch(step))

    async def _batch(self, step: int) -> tuple[TrainBatch, StepStats]:
        while (recorded := self._recorded) is None:
            await self._change()
        if recorded.holds(step):
            batch, stats = await recorded.batch(step)
            self._tell_again(stats.scored)
            if not recorded.left:
                await self._go_live(recorded)
            return batch, stats
        if step != self._history.next_step:
            raise TrainingError(f"asked for step {step}, next is {self._history.next_step}")
        self._making = True
        self._buffer.asked(slots_short=self._trips.slots_short)
        while (batch := await self._shown(step)) is None:
            await self._changed.wait()
        self._making, self.show_first = False, None
        ids = tuple(group.id for group in batch.groups)
        staleness = staleness_of(step, self._buffer.groups.oldest_version(ids))
        self._history.note(ev.Trained(step, ids, staleness))
        stats = self._history.take_stats()
        stats.steps_ahead = dict(self._buffer.steps_ahead.of)
        self._buffer.drop_stale(step + 1)
        self._trips.end_older(self._issuing.oldest_version)
        self.wake()
        began_s, stats.committed = time.perf_counter(), Future()
        note = functools.partial(_note_commit, stats, stats.committed, began_s)
        self._history.commit(batch).add_done_callback(note)
        return batch, stats

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _shown(self, step: int) -> TrainBatch | None:
        if self.show_first is not None:
            self.show_first(self.ready)
        return await self._complete(step)

    async def _complete(self, step: int) -> TrainBatch | None:
        """Returns the batch of ``step`` with its advantages and, with a selection, its repeats.

        None while groups of it are missing. Those of a large batch are computed on another thread.
        If some of its groups are dropped meanwhile, the batch is chosen again.
        """
        while True:
            self._changed.clear()
            if self._buffer.drop_stale(step):
                self.wake()
            if (chosen := await self._buffer.batch()) is None:
                return None
            if sum(len(group.episodes) for group in chosen) > _MOST_AT_ONCE:
                made = await asyncio.to_thread(self._made, step, chosen)
            else:
                made = self._made(step, chosen)
            if all(group.id in self._buffer.groups for group in chosen):
                return made

    def _made(self, step: int, groups: tuple[ScoredGroup, ...]) -> TrainBatch:
        batch = TrainBatch(step, groups, self._advantages(groups, step))
        return batch if self._selection is None else self._selection.selected(batch)

    def _advantages(self, groups: Sequence[ScoredGroup], step: int) -> tuple[np.ndarray, ...]:
        found: dict[int, np.ndarray] = {}
        for name, slot in self._advantage_slots.items():
            own = [group for group in groups if self.run_state.name_of(group) == name]
            of_own = advantages.of_groups(slot, own, step) if own else ()
            found |= {group.id: of_one for group, of_one in zip(own, of_own, strict=True)}
        return tuple(found[group.id] for group in groups)

    async def commit(self) -> tuple[Commit, Saved]:
        """Commits all events so far, without a batch; returns the segment and the run state."""
        if self.live:
            return await self._history.commit_state()
        # Recorded batches are trained again, or the trainer has published nothing: nothing is new.
        position = Commit(0, START, ()) if self._recorded is None else self._recorded.position
        return position, self.run_state.state()


def _note_commit(
    stats: StepStats, noted: Future[Commit], began_s: float, committed: Future[Commit]
) -> None:
    """Notes how long a commit took, and then passes its result on; on the recorder's thread."""
    stats.commit_s = (ended_s := time.perf_counter()) - began_s
    stats.spans.append(Span("controller", "writes the batch", began_s, ended_s))
    if (error := committed.exception()) is not None:
        noted.set_exception(error)
    else:
        noted.set_result(committed.result())
