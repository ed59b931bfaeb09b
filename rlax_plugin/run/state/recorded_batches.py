"""Batches that an earlier process has committed: they train again, unchanged."""

from __future__ import annotations

from rlax_plugin.base.types import Judged, TrainBatch
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.run.state.recorder import Commit
from rlax_plugin.run.state.recovery import Recovery
from rlax_plugin.run.state.run_history import RunHistory


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
