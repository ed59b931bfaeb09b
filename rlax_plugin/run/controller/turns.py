"""The turns of episodes under way, recorded when sampled, which a later process continues."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.types import Key, Sampled, Turn
from rlax_plugin.rollout.episodes.playing import TurnLog, VoidTurns
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state.run_history import RunHistory
from rlax_plugin.run.state.unfinished_turns import RecordedTurn

QUARANTINED = "its worker was quarantined"
_TOO_STALE = "too stale", Ending.TOO_STALE


class Turns(TurnLog):
    """The turns of training's groups, in the run's history."""

    def __init__(self, history: RunHistory):
        self._history = history
        self._known: defaultdict[int, list[RecordedTurn]] = defaultdict(list)
        self._workers: defaultdict[int, set[str]] = defaultdict(set)  # of a group's turns
        self._oldest: dict[int, int] = {}  # version of a group's turns
        self.oldest = 0
        self._void: set[int] = set()
        self._playing: dict[int, asyncio.Future[Any]] = {}

    def take_up(self, recorded: Sequence[RecordedTurn]) -> None:
        """Takes the turns of open groups that an earlier process has recorded."""
        for one in recorded:
            self._known[one.key.group].append(one)
            self._sampled_by(one.key, one.turn.sampled.workers, int(one.turn.sampled.versions[0]))

    def recorded(self, group: int) -> bool:
        """True if turns of a group are recorded."""
        return group in self._known

    def first_turns(self, group: int, samples: int) -> tuple[Turn, ...] | None:
        """Returns the first turns of a group; None unless all of them are recorded."""
        found = {
            key.sample: turn
            for key, turn in self._known.get(group, ())
            if (key.trajectory, key.turn) == (0, 0)
        }
        return tuple(found[index] for index in range(samples)) if len(found) == samples else None

    def forget(self, group: int) -> None:
        """Forgets the turns of a group that is over or generated from its start again."""
        self._known.pop(group, None)
        self._workers.pop(group, None)
        self._oldest.pop(group, None)
        self._void.discard(group)

    def first_sampled(self, key: Key, turns: Sequence[Turn]) -> None:
        """Records the first turns of all samples of a group."""
        recorded = [
            RecordedTurn(key._replace(sample=index), turn) for index, turn in enumerate(turns)
        ]
        self._note(key, [turn.sampled for turn in turns], recorded)

    # --- turns that will not train --------------------------------------------------------------

    def distrust(self, worker: str) -> None:
        """Has groups with turns of a quarantined worker generated from their start again."""
        for group in [g for g, names in self._workers.items() if worker in names]:
            self._generate_anew(group, QUARANTINED, Ending.QUARANTINED)

    def drop_older(self, version: int) -> None:
        """Has groups with turns older than a version, now too stale, generated from their start.

        So it does with a group once a turn arrives that was begun before and is too old.
        """
        self.oldest = version
        for group in [g for g, oldest in self._oldest.items() if oldest < version]:
            self._generate_anew(group, *_TOO_STALE)

    def _generate_anew(self, group: int, reason: str, ending: Ending) -> None:
        """Records the next attempt at once, so that no later process continues the old turns."""
        self.forget(group)
        self._void.add(group)
        attempt = self._history.open[group].attempt + 1
        self._history.note(ev.Reissued(group, attempt, reason, ending))
        if (playing := self._playing.get(group)) is not None:
            playing.cancel()

    def void(self, group: int) -> bool:
        """True if a group's running episodes are void, with its next attempt recorded."""
        return group in self._void

    # --- see ``TurnLog`` -----------------------------------------------------------------------

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return self._known.pop(group, ())

    def sampled(self, key: Key, turn: Turn) -> None:
        reached(FaultPoint.TURN_SAMPLED)
        self._note(key, [turn.sampled], [RecordedTurn(key, turn)])
        if self._oldest.get(key.group, self.oldest) < self.oldest:
            self._generate_anew(key.group, *_TOO_STALE)

    def discarded(self, key: Key) -> None:
        assert key.sample is not None
        if not self.void(key.group):
            self._history.note(ev.Discarded(key.group, key.sample, key.trajectory, key.turn))

    def _note(self, key: Key, samples: Sequence[Sampled], turns: Sequence[RecordedTurn]) -> None:
        if self.void(key.group):
            return
        event = generated(key, self._history.open[key.group].attempt, samples)
        self._sampled_by(key, event.workers, event.oldest_version)
        self._history.generated(event, turns)

    def _sampled_by(self, key: Key, workers: Sequence[str], oldest: int) -> None:
        self._workers[key.group].update(workers)
        self._oldest[key.group] = min(oldest, self._oldest.get(key.group, oldest))

    async def unless_void[T](self, group: int, playing: asyncio.Future[T]) -> T:
        self._playing[group] = playing
        try:
            return await playing
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.void(group) and task is not None and not task.cancelling():
                raise VoidTurns from None
            raise  # the run ends
        finally:
            del self._playing[group]


def generated(key: Key, attempt: int, samples: Sequence[Sampled]) -> ev.Generated:
    """Returns the event of the samples that answered a request.

    Args:
      attempt: the group's.
    """
    return ev.Generated(
        group=key.group,
        attempt=attempt,
        workers=tuple(dict.fromkeys(name for s in samples for name in s.workers)),
        oldest_version=min(int(s.versions.min()) for s in samples),
        newest_version=max(int(s.versions.max()) for s in samples),
        samples=len(samples),
        tokens=sum(len(s.tokens) for s in samples),
        sample=key.sample,
        trajectory=key.trajectory,
        turn=key.turn,
    )
