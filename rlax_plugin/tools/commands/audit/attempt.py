"""The turns that were generated of a group at one attempt."""

from __future__ import annotations

from rlax_plugin.run.state import events as ev

Place = tuple[int, int, int]
"""The place of a turn: sample, trajectory and turn."""


class Generation:
    """The events ``Generated`` of one attempt, added up.

    Args:
      first: the event of the first turns of all samples.
    """

    def __init__(self, first: ev.Generated):
        self.first = first
        self._later: dict[Place, ev.Generated] = {}  # in the order in which they happened

    @property
    def attempt(self) -> int:
        return self.first.attempt

    @property
    def samples(self) -> int:
        return self.first.samples

    @property
    def _all(self) -> list[ev.Generated]:
        return [self.first, *self._later.values()]

    @property
    def tokens(self) -> int:
        """Number of tokens of all turns that are not void."""
        return sum(event.tokens for event in self._all)

    @property
    def oldest_version(self) -> int:
        return min(event.oldest_version for event in self._all)

    @property
    def newest_version(self) -> int:
        return max(event.newest_version for event in self._all)

    @property
    def sequences(self) -> int:
        """Number of trajectories of all samples."""
        return self.samples + sum(turn == 0 for _, _, turn in self._later)

    @property
    def later_turns(self) -> int:
        return len(self._later)

    def add(self, event: ev.Generated) -> str | None:
        """Adds a later turn; returns a description of the expected event if it is wrong."""
        assert event.sample is not None
        place = event.sample, event.trajectory, event.turn
        if place in self._later or (event.trajectory, event.turn) == (0, 0):
            return "every turn once"
        self._later[place] = event
        if not 0 <= event.sample < self.samples:
            return f"a sample from 0 to {self.samples - 1}"
        if event.samples != 1 or event.attempt != self.attempt:
            return f"one sample, of attempt {self.attempt}"
        before = event.sample, event.trajectory, event.turn - 1
        if event.turn and before not in self._later and before[1:] != (0, 0):
            return f"turn {event.turn - 1} before it"
        return None

    def discard(self, event: ev.Discarded) -> str | None:
        """Removes a turn; returns a description of the expected event if it is wrong."""
        place = event.sample, event.trajectory, event.turn
        if place not in self._later:
            return "a later turn that was generated"
        del self._later[place]
        return None
