"""Turns of episodes under way: recorded as they are sampled, and taken up by a later process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rlax_plugin.controller.run_history import RunHistory
from rlax_plugin.episodes.playing import TurnLog
from rlax_plugin.records import events as ev
from rlax_plugin.records.turns import RecordedTurn
from rlax_plugin.types import Key, Sampled, Turn


class Turns(TurnLog):
    """The turns of training's groups, in the run's history."""

    def __init__(self, history: RunHistory):
        self._history = history
        self._known: defaultdict[int, list[RecordedTurn]] = defaultdict(list)

    def take_up(self, recorded: Sequence[RecordedTurn]) -> None:
        """What an earlier process has recorded of groups that are open."""
        for one in recorded:
            self._known[one.key.group].append(one)

    def recorded(self, group: int) -> bool:
        """Whether the first turns of a group are known."""
        return group in self._known

    def workers_of(self, group: int) -> frozenset[str]:
        """Names of the workers that sampled what is recorded of a group."""
        recorded = self._known.get(group, ())
        return frozenset(name for _, turn in recorded for name in turn.sampled.workers)

    def first_samples(self, group: int, samples: int) -> tuple[Sampled, ...] | None:
        """What the first turns of a group were, if all of them are recorded."""
        found = {
            key.sample: turn.sampled
            for key, turn in self._known.get(group, ())
            if (key.trajectory, key.turn) == (0, 0)
        }
        return tuple(found[index] for index in range(samples)) if len(found) == samples else None

    def forget(self, group: int) -> None:
        """The group is generated anew, or is over."""
        self._known.pop(group, None)

    def first_sampled(self, key: Key, turns: Sequence[Turn]) -> None:
        """The first turns of all samples of a group were sampled."""
        recorded = [
            RecordedTurn(key._replace(sample=index), turn) for index, turn in enumerate(turns)
        ]
        self._note(key, [turn.sampled for turn in turns], recorded)

    # --- see ``TurnLog`` -----------------------------------------------------------------------

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return self._known.pop(group, ())

    def sampled(self, key: Key, turn: Turn) -> None:
        self._note(key, [turn.sampled], [RecordedTurn(key, turn)])

    def discarded(self, key: Key) -> None:
        assert key.sample is not None
        self._history.note(ev.Discarded(key.group, key.sample, key.trajectory, key.turn))

    def _note(self, key: Key, samples: Sequence[Sampled], turns: Sequence[RecordedTurn]) -> None:
        event = ev.Generated(
            group=key.group,
            attempt=self._history.open[key.group].attempt,
            workers=tuple(dict.fromkeys(name for s in samples for name in s.workers)),
            oldest_version=min(int(s.versions.min()) for s in samples),
            newest_version=max(int(s.versions.max()) for s in samples),
            samples=len(samples),
            tokens=sum(len(s.tokens) for s in samples),
            sample=key.sample,
            trajectory=key.trajectory,
            turn=key.turn,
        )
        self._history.generated(event, turns)
