"""The buffer: accepted groups that wait for the batch in which they train, oldest first."""

from __future__ import annotations

import asyncio

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.run.controller.batch_rule import BatchRule, Due
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.ready_groups import ReadyGroups
from rlax_plugin.run.state.run_history import RunHistory

_MOST_AT_ONCE = 2048  # sequences that are packed on the event loop: some milliseconds


class Buffer:
    """Selects batches from the run state's ready groups, and drops groups that cannot train.

    Args:
      deterministic: a batch waits until all issued groups are scored.

    Attributes:
      rule: decides which groups make a batch.
      staleness: decides which groups are too old for it.
    """

    def __init__(
        self, history: RunHistory, rule: BatchRule, staleness: Staleness, deterministic: bool
    ):
        self._history, self.rule, self.staleness = history, rule, staleness
        self._deterministic = deterministic

    @property
    def groups(self) -> ReadyGroups:
        """The accepted groups."""
        return self._history.run_state.ready

    @property
    def ready(self) -> str:
        """The part of a batch that the accepted groups fill, such as ``3 of 8 groups``."""
        return self.rule.shortfall(self.groups) + ("" if self.rule.tokens else " groups")

    @property
    def complete(self) -> bool:
        """True if the accepted groups make a batch."""
        return not self._waits_for_all and (
            self.rule.last_due(self.groups, self._history.oldest_open) is not None
        )

    @property
    def _waits_for_all(self) -> bool:
        # A batch may need fewer groups than were issued: see what becomes of all.
        return self._deterministic and bool(self._history.open)

    async def batch(self) -> tuple[ScoredGroup, ...] | None:
        """Returns the first batch in issue order; None while an older group is unfinished.

        Large packed batches are laid out on another thread. If some of the groups are dropped
        meanwhile, the batch is chosen again.
        """
        while (due := self._due()) is not None:
            packed = self.rule.sequences_per_row > 1
            if packed and sum(map(len, due.sizes)) > _MOST_AT_ONCE:
                count = await asyncio.to_thread(self.rule.fitting, due)
            else:
                count = self.rule.fitting(due)
            if all(group_id in self.groups for group_id in due.groups):
                return tuple(self.groups[group_id] for group_id in due.groups[:count])
        return None

    def _due(self) -> Due | None:
        if self._waits_for_all:
            return None
        return self.rule.due(self.groups, self._history.oldest_open)

    def drop_stale(self, step: int) -> bool:
        """Drops groups too stale to train at ``step`` or later; returns True if there were any."""
        stale = self.groups.older_than(self.staleness.oldest(step))
        for group_id in stale:
            self._history.note(ev.Dropped(group_id, Ending.TOO_STALE))
        return bool(stale)

    def drop_samples_of(self, worker: str) -> None:
        """Drops each group to which a quarantined worker has contributed."""
        for group in self.groups.in_order():
            if any(worker in episode.workers for episode in group.episodes):
                self._history.note(ev.Dropped(group.id, Ending.QUARANTINED))
