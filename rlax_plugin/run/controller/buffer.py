"""The buffer: accepted groups that wait for the batch in which they train, oldest first."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.config import RlaxSection
from rlax_plugin.run.controller.batch_rule import BatchRule, Due
from rlax_plugin.run.controller.mixing import Mix, StepsAhead
from rlax_plugin.run.controller.staleness import Staleness
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.ready_groups import ReadyGroups
from rlax_plugin.run.state.run_history import RunHistory

_MOST_AT_ONCE = 2048  # sequences that are packed on the event loop: some milliseconds


class Buffer:
    """Selects batches from the run state's ready groups, and drops groups that cannot train.

    Attributes:
      rule: decides which groups make a batch.
      staleness: decides which groups are too old for it.
      mix: of several environments; None: there is one.
      steps_ahead: of several environments, for how many steps each is asked ahead.
    """

    def __init__(
        self, section: RlaxSection, history: RunHistory, rule: BatchRule, staleness: Staleness
    ):
        self._history, self.rule, self.staleness = history, rule, staleness
        self._deterministic = section.deterministic  # a batch waits until all are scored
        self._window, self._oversample = section.batches.look_ahead, section.curation.oversample
        weights = {name: one.weight for name, one in section.environments.items()}
        self.mix = Mix(weights, rule.groups) if weights else None
        self.steps_ahead = StepsAhead(weights, section.staleness.steps_ahead)

    @property
    def groups(self) -> ReadyGroups:
        """The accepted groups."""
        return self._history.run_state.ready

    @property
    def ready(self) -> str:
        """The part of a batch that the accepted groups fill, such as ``3 of 8 groups``."""
        if self.mix is not None:
            wanted, own = self.mix.of_batch(self._trained), self._of_environments()
            parts = [f"{name} {len(own[name])} of {n}" for name, n in wanted.items()]
            return f"{', '.join(parts)} groups"
        return self.rule.shortfall(self.groups) + ("" if self.rule.tokens else " groups")

    @property
    def complete(self) -> bool:
        """True if the accepted groups make a batch."""
        if self.mix is not None:
            return not self._waits_for_all and not self._lacking(self._of_environments())
        return not self._waits_for_all and (
            self.rule.last_due(self.groups, self._before(self.rule.groups)) is not None
        )

    @property
    def would_complete(self) -> bool:
        """True if the accepted groups would make a batch, were no group open."""
        if self.mix is not None:
            return not self._lacking(self._of_environments(waits=False))
        return self.rule.completes(self.groups)

    def capacity(self, environment: str) -> int:
        """Returns the number of places in the mix up to which an environment is asked."""
        return self.steps_ahead.capacity(environment, self.rule.groups, self._oversample)

    def _before(self, groups: int, environment: str = "") -> int | None:
        """Returns the open group before which groups may train; None: all may.

        Args:
          groups: of this environment in a batch, so many of which a look-ahead may pass over.
        """
        if self._window == 1 and self.mix is None:
            return self._history.oldest_open
        state = self._history.run_state
        own = (
            g
            for g in self._history.open
            if not environment or environment == state.environment_of(g)
        )
        return next(itertools.islice(own, (self._window - 1) * groups, None), None)

    @property
    def _trained(self) -> Mapping[str, int]:
        return self._history.run_state.trained

    def _of_environments(self, *, batches: int = 1, waits: bool = True) -> dict[str, list[int]]:
        """Returns environment -> its accepted groups that the next batch may have, in order.

        Args:
          batches: those of so many batches.
          waits: False: also those behind open groups.
        """
        assert self.mix is not None
        places = self.mix.places(self._trained, batches * self.rule.groups)
        wanted, found = {name: len(own) for name, own in places.items()}, dict[str, list[int]]()
        state = self._history.run_state
        ready = {name: list[int]() for name in wanted}
        for group_id in sorted(self.groups):
            ready[state.environment_of(group_id)].append(group_id)
        for name, count in wanted.items():
            before = self._before(count, name) if waits else None
            found[name] = [g for g in ready[name] if before is None or g < before][:count]
        return found

    def _lacking(self, own: Mapping[str, Sequence[int]]) -> set[str]:
        """Returns the environments that have too few groups for the next batch."""
        assert self.mix is not None
        wanted = self.mix.of_batch(self._trained)
        return {name for name, count in wanted.items() if len(own[name]) < count}

    def asked(self, *, slots_short: bool) -> None:
        """Adapts how far ahead environments are asked, when the trainer asks for a batch.

        Args:
          slots_short: True if requests wait for slots.
        """
        if self.mix is None:
            return
        own = self._of_environments(batches=2)
        both = {n: len(p) for n, p in self.mix.places(self._trained, 2 * self.rule.groups).items()}
        ready = {name for name, count in both.items() if len(own[name]) >= count}
        self.steps_ahead.batch_asked(self._lacking(own), ready, slots_short=slots_short)

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
        if self.mix is None:
            return self.rule.due(self.groups, self._before(self.rule.groups))
        own = self._of_environments()
        if self._lacking(own):
            return None
        return self.rule.of_groups(self.groups, itertools.chain(*own.values()))

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
