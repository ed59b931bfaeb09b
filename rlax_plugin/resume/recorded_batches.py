"""Batches that an earlier process has committed: they train again, as they are."""

from __future__ import annotations

from rlax_plugin.metrics.step import StepStats
from rlax_plugin.records.recorder import Commit
from rlax_plugin.resume.recovery import Recovery
from rlax_plugin.resume.run_history import RunHistory
from rlax_plugin.types import Judged, TrainBatch


class RecordedBatches:
    """Brings the run state from one recorded batch to the next, as the trainer asks for them.

    Attributes:
      position: the journal's segment at whose end the run state is true.
      left: whether there are batches that were not handed out yet.
      resumed_from: the step of the checkpoint that the run goes on from; None: it begins.
    """

    def __init__(self, recovery: Recovery, history: RunHistory):
        self._recovery, self._history = recovery, history
        self.position = Commit(recovery.segment, recovery.checksum, ())
        self.left = recovery.last_step is not None
        self.resumed_from = recovery.step if recovery.anything else None

    def holds(self, step: int) -> bool:
        """Whether the batch of a step is recorded."""
        return self._recovery.holds(step)

    async def batch(self, step: int) -> tuple[TrainBatch, StepStats]:
        """What trains at ``step``, and what had happened on the way to them.

        Raises:
          JournalError: its files are not what was committed.
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
        """Adds up what had happened after the last recorded batch; returns what was scored."""
        rest = await self._history.read(self._recovery.load_rest)
        rest.apply(self._history.run_state)
        return rest.scored
