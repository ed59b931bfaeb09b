"""Turns of episodes under way: recorded as they are sampled, and taken up by a later process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rlax_plugin.controller.run_history import RunHistory
from rlax_plugin.episodes.playing import TurnLog
from rlax_plugin.records import events as ev
from rlax_plugin.records.turns import RecordedTurn
from rlax_plugin.types import Key, Sampled, Turn

QUARANTINED = "its worker was quarantined"


class Turns(TurnLog):
    """The turns of training's groups, in the run's history."""

    def __init__(self, history: RunHistory):
        self._history = history
        self._known: defaultdict[int, list[RecordedTurn]] = defaultdict(list)
        self._workers: defaultdict[int, set[str]] = defaultdict(set)  # of a group's turns
        self._void: set[int] = set()

    def take_up(self, recorded: Sequence[RecordedTurn]) -> None:
        """What an earlier process has recorded of groups that are open."""
        for one in recorded:
            self._known[one.key.group].append(one)
            self._workers[one.key.group].update(one.turn.sampled.workers)

    def recorded(self, group: int) -> bool:
        """Whether the first turns of a group are known."""
        return group in self._known

    def first_turns(self, group: int, samples: int) -> tuple[Turn, ...] | None:
        """The first turns of a group, if all of them are recorded."""
        found = {
            key.sample: turn
            for key, turn in self._known.get(group, ())
            if (key.trajectory, key.turn) == (0, 0)
        }
        return tuple(found[index] for index in range(samples)) if len(found) == samples else None

    def forget(self, group: int) -> None:
        """The group is generated anew, or is over."""
        self._known.pop(group, None)
        self._workers.pop(group, None)
        self._void.discard(group)

    def first_sampled(self, key: Key, turns: Sequence[Turn]) -> None:
        """The first turns of all samples of a group were sampled."""
        recorded = [
            RecordedTurn(key._replace(sample=index), turn) for index, turn in enumerate(turns)
        ]
        self._note(key, [turn.sampled for turn in turns], recorded)

    # --- workers that are not trusted ----------------------------------------------------------

    def distrust(self, worker: str) -> None:
        """A worker was quarantined: groups of which it has sampled turns are generated anew.

        That is recorded at once, so that no later process takes up what it has sampled.
        """
        for group in [g for g, names in self._workers.items() if worker in names]:
            self.forget(group)
            self._void.add(group)
            attempt = self._history.open[group].attempt + 1
            self._history.note(ev.Reissued(group, attempt, QUARANTINED))

    def void(self, group: int) -> bool:
        """Whether what is being played of a group is void, and its next attempt recorded."""
        return group in self._void

    # --- see ``TurnLog`` -----------------------------------------------------------------------

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return self._known.pop(group, ())

    def sampled(self, key: Key, turn: Turn) -> None:
        self._note(key, [turn.sampled], [RecordedTurn(key, turn)])

    def discarded(self, key: Key) -> None:
        assert key.sample is not None
        if not self.void(key.group):
            self._history.note(ev.Discarded(key.group, key.sample, key.trajectory, key.turn))

    def _note(self, key: Key, samples: Sequence[Sampled], turns: Sequence[RecordedTurn]) -> None:
        if self.void(key.group):
            return
        workers = tuple(dict.fromkeys(name for s in samples for name in s.workers))
        self._workers[key.group].update(workers)
        event = ev.Generated(
            group=key.group,
            attempt=self._history.open[key.group].attempt,
            workers=workers,
            oldest_version=min(int(s.versions.min()) for s in samples),
            newest_version=max(int(s.versions.max()) for s in samples),
            samples=len(samples),
            tokens=sum(len(s.tokens) for s in samples),
            sample=key.sample,
            trajectory=key.trajectory,
            turn=key.turn,
        )
        self._history.generated(event, turns)
