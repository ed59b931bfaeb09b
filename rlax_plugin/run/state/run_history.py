"""Applies each event of a run to the run state and hands it to the recorder, as one act.

So the run state is always the sum of the recorded events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from rlax_plugin.base.types import Judged, TrainBatch, group_of
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.recorder import Commit, Recorder
from rlax_plugin.run.state.run_state import Open, RunState, Saved
from rlax_plugin.run.state.unfinished_turns import RecordedTurn


class RunHistory:
    """The only writer of the run state while a run is live.

    Attributes:
      stats: counts of the events since the last batch.
    """

    def __init__(self, run_state: RunState, recorder: Recorder):
        self.run_state, self._recorder = run_state, recorder
        self.stats = StepStats()
        self._committing: list[Future[Commit]] = []  # whose groups have no segment yet

    @property
    def open(self) -> Mapping[int, Open]:
        """Groups that are issued and not scored yet, in issue order."""
        return self.run_state.open

    @property
    def oldest_open(self) -> int | None:
        """The oldest open group; None if there is none."""
        return self.run_state.oldest_open

    @property
    def next_step(self) -> int:
        """The step whose batch is next."""
        return self.run_state.next_step

    def note(self, event: ev.Event) -> None:
        """Takes an event that is neither a choice of prompts nor a scored group."""
        self.run_state.apply(event)
        self._recorder.add(event)
        self.stats.count(event)

    def generated(self, event: ev.Generated, turns: Sequence[RecordedTurn]) -> None:
        """Takes turns of unfinished episodes, which a later process need not sample again."""
        self.run_state.apply(event)
        self._recorder.add(event, turns=turns)

    def choose(self, count: int, min_version: int, environment: str = "") -> ev.Issued:
        """Issues ``count`` groups, of the prompts that the sampler chooses next."""
        event = self.run_state.choose(count, min_version, environment)
        self._recorder.add(event)
        self.stats.count(event)
        return event

    def score(self, event: ev.Scored, judged: Judged) -> None:
        """Takes a scored group."""
        self.run_state.apply(event, group_of(judged))
        self._recorder.add(event, judged)
        self.stats.scored.append(judged)
        self.stats.count(event)

    def take_stats(self) -> StepStats:
        """Returns the statistics since the last batch, and resets them."""
        stats, self.stats = self.stats, StepStats()
        stats.stage = self.run_state.stage
        return stats

    def commit(self, batch: TrainBatch) -> Future[Commit]:
        """Begins to commit a batch with all events before it; see ``Recorder.commit``."""
        committed = self._recorder.commit(batch.step, batch)
        self._committing.append(committed)
        asyncio.wrap_future(committed).add_done_callback(
            lambda done: self._committed(committed, done)
        )
        return committed

    def _committed(self, committed: Future[Commit], done: asyncio.Future[Commit]) -> None:
        self._committing.remove(committed)
        if not done.cancelled() and done.exception() is None:
            self._remember(done.result())

    async def commit_state(self) -> tuple[Commit, Saved]:
        """Commits all events so far, without a batch.

        Returns:
          The segment, and the run state at its end.
        """
        saved = self.run_state.state()  # now: while the segment is written, more may happen
        earlier = list(self._committing)
        committed = self._recorder.commit(self.next_step, None)
        commit = await asyncio.shield(asyncio.wrap_future(committed))
        self._remember(commit)
        # The recorder writes one after another: those before are on disk as well.
        written = [*(one.result(0) for one in earlier), commit]
        kept = {str(group): one.number for one in written for group in one.kept}
        ready = saved.document["ready"]
        saved.document["ready"] = {g: segment or kept[g] for g, segment in ready.items()}
        return commit, saved

    def _remember(self, commit: Commit) -> None:
        for group_id in commit.kept:
            if group_id in self.run_state.ready:
                self.run_state.segment_of[group_id] = commit.number

    async def read[**P, T](self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function that reads records, after pending commits; see ``Recorder.call``."""
        return await self._recorder.call(work, *args, **kwargs)
