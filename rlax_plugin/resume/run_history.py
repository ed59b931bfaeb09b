"""Applies each event of a run to the run state and hands it to the recorder, as one act.

So the run state is always the sum of the recorded events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rlax_plugin.metrics.step import StepStats
from rlax_plugin.records import events as ev
from rlax_plugin.records.recorder import Commit, Recorder
from rlax_plugin.records.unfinished_turns import RecordedTurn
from rlax_plugin.resume.run_state import Open, RunState, Saved
from rlax_plugin.types import Judged, TrainBatch, group_of


class RunHistory:
    """The only writer of the run state while a run is live.

    Attributes:
      stats: counts of the events since the last batch.
    """

    def __init__(self, run_state: RunState, recorder: Recorder):
        self.run_state, self._recorder = run_state, recorder
        self.stats = StepStats()

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

    def choose(self, count: int, min_version: int) -> ev.Issued:
        """Issues ``count`` groups, of the prompts that the sampler chooses next."""
        event = self.run_state.choose(count, min_version)
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

    async def commit(self, batch: TrainBatch) -> None:
        """Commits a batch with all events before it; on disk when it returns.

        Raises:
          RlaxError: it cannot be written.
        """
        self._remember(await self._recorder.commit(batch.step, batch))

    async def commit_state(self) -> tuple[Commit, Saved]:
        """Commits all events so far, without a batch.

        Returns:
          The segment, and the run state at its end.
        """
        saved = self.run_state.state()  # now: while the segment is written, more may happen
        commit = await self._recorder.commit(self.next_step, None)
        self._remember(commit)
        kept = dict.fromkeys(map(str, commit.kept), commit.number)
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
