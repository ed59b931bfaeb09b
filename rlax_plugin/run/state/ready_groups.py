"""The accepted groups that wait for a batch, with the sums by which batches are chosen.

What a decision needs of a group is computed once, when it is accepted. It is a row of a numpy array
in issue order, so that a question takes microseconds for thousands of groups.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.training.objective.batches import sizes

UNLIMITED = sys.maxsize
_SMALLEST = 64  # groups for which the array has room


class Sums(NamedTuple):
    """Sums over some groups.

    Attributes:
      tokens: sampled tokens.
      sequences: training sequences, and ``positions`` that they take in rows.
    """

    groups: int = 0
    tokens: int = 0
    sequences: int = 0
    positions: int = 0

    def plus(self, other: Sums) -> Sums:
        return Sums(*map(int.__add__, self, other))

    def minus(self, other: Sums) -> Sums:
        return Sums(*map(int.__sub__, self, other))


class _Facts(NamedTuple):
    """The facts about one group that decisions need."""

    own: Sums
    sizes: tuple[int, ...]
    oldest_version: int


class ReadyGroups(Mapping[int, ScoredGroup]):
    """Accepted groups by id, in the order in which they were accepted.

    Attributes:
      total: sums over all of them.
    """

    def __init__(self, groups: Iterable[ScoredGroup] = ()):
        self._groups: dict[int, ScoredGroup] = {}
        self._facts: dict[int, _Facts] = {}
        self._of_version: dict[int, set[int]] = {}  # oldest version of a group -> groups
        self.total = Sums()
        self._first = 0  # the group of the first row
        self._rows = np.zeros((0, len(Sums._fields)), np.int64)  # 0 where there is no such group
        for group in groups:
            self.add(group)

    def __getitem__(self, group_id: int) -> ScoredGroup:
        return self._groups[group_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: ScoredGroup) -> None:
        """Takes an accepted group."""
        positions = tuple(sizes([group]))
        tokens = sum(episode.tokens for episode in group.episodes)
        own = Sums(1, tokens, len(positions), sum(positions))
        facts = self._facts[group.id] = _Facts(own, positions, group.oldest_version)
        self._groups[group.id] = group
        self._of_version.setdefault(facts.oldest_version, set()).add(group.id)
        self.total = self.total.plus(own)
        if not self._first <= group.id < self._first + len(self._rows):
            self._make_room()
        self._rows[group.id - self._first] = own

    def remove(self, group_id: int) -> None:
        """Forgets a group, which is in a batch or dropped.

        Raises:
          KeyError: there is no such group.
        """
        del self._groups[group_id]
        facts = self._facts.pop(group_id)
        of_version = self._of_version[facts.oldest_version]
        of_version.remove(group_id)
        if not of_version:
            del self._of_version[facts.oldest_version]
        self.total = self.total.minus(facts.own)
        self._rows[group_id - self._first] = 0

    def in_order(self) -> list[ScoredGroup]:
        """Returns all groups in issue order."""
        return [self._groups[group_id] for group_id in sorted(self._groups)]

    def older_than(self, version: int) -> list[int]:
        """Returns the groups that have a token of an older version, in issue order."""
        older = [ids for oldest, ids in self._of_version.items() if oldest < version]
        return sorted(group_id for ids in older for group_id in ids)

    def oldest_version(self, groups: Iterable[int]) -> int:
        """Returns the oldest version among all tokens of some groups, at least one."""
        return min(self._facts[group_id].oldest_version for group_id in groups)

    def sizes(self, group_id: int) -> tuple[int, ...]:
        """Returns the positions of each of a group's sequences, see ``batches.sizes``."""
        return self._facts[group_id].sizes

    def reaching(self, limits: Sums) -> tuple[int, Sums] | None:
        """Finds the first group with which one of the sums, in issue order, reaches its limit.

        Returns:
          Its id, and the sums up to and with this group; None if no sum reaches its limit.
        """
        if all(total < limit for total, limit in zip(self.total, limits, strict=True)):
            return None
        sums = self._rows.cumsum(axis=0)
        place = int((sums >= limits).any(axis=1).argmax())
        return self._first + place, Sums(*sums[place].tolist())

    def _make_room(self) -> None:
        """Makes rows for the groups that are there, and for as many later ones."""
        self._first = min(self._groups)
        room = max(_SMALLEST, 2 * (max(self._groups) - self._first))
        self._rows = np.zeros((room, len(Sums._fields)), np.int64)
        for group_id, facts in self._facts.items():
            self._rows[group_id - self._first] = facts.own
