"""The buffer: accepted groups that wait for the batch in which they train, oldest first."""

from __future__ import annotations

import math

from rlax_plugin.controller.batch_rule import BatchRule
from rlax_plugin.controller.staleness import Staleness
from rlax_plugin.records import events as ev
from rlax_plugin.resume.run_history import RunHistory
from rlax_plugin.types import ScoredGroup


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

    def groups(self) -> list[ScoredGroup]:
        """Returns the accepted groups, in issue order."""
        ready = self._history.run_state.ready
        return [ready[group_id] for group_id in sorted(ready)]

    @property
    def ready(self) -> str:
        """The part of a batch that the accepted groups fill, such as ``3 of 8 groups``."""
        return self.rule.shortfall(self.groups()) + ("" if self.rule.tokens else " groups")

    def batch(self) -> tuple[ScoredGroup, ...] | None:
        """Returns the first batch in issue order; None while an older group is unfinished."""
        if self._deterministic and self._history.open:
            return None  # a batch may need fewer groups than were issued: see what becomes of all
        oldest_open = min(self._history.open, default=math.inf)
        return self.rule.choose([group for group in self.groups() if group.id < oldest_open])

    def drop_stale(self, step: int) -> bool:
        """Drops groups too stale to train at ``step`` or later; returns True if there were any."""
        stale = [group for group in self.groups() if self.staleness.excludes(group, step)]
        for group in stale:
            self._history.note(ev.Dropped(group.id, "too stale"))
        return bool(stale)

    def drop_samples_of(self, worker: str) -> None:
        """Drops each group to which a quarantined worker has contributed."""
        for group in self.groups():
            if any(worker in episode.workers for episode in group.episodes):
                self._history.note(ev.Dropped(group.id, "its worker was quarantined"))
