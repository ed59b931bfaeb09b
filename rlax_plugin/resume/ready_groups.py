"""The accepted groups that wait for a batch, with the sums by which batches are chosen.

What a decision needs of a group is computed once, when it is accepted. The sums over the first
groups in issue order are kept in Fenwick trees (https://doi.org/10.1002/spe.4380240306): each group
that comes or goes, and each question, takes time in the logarithm of their number.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from rlax_plugin.objective.batches import sizes
from rlax_plugin.types import ScoredGroup

UNLIMITED = sys.maxsize
_SMALLEST = 64  # groups for which trees have room


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
        self._first, self._room = 0, 0  # trees have groups ``_first`` to ``_first + _room - 1``
        self._trees: tuple[list[int], ...] = ([], [], [], [])
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
        if self._first <= group.id < self._first + self._room:
            self._count(group.id, own)
        else:
            self._make_room()

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
        self._count(group_id, Sums().minus(facts.own))

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
        groups_n, tokens_n, sequences_n, positions_n = self._trees
        most_groups, most_tokens, most_sequences, most_positions = limits
        place = groups = tokens = sequences = positions = 0
        step = self._room
        while step:
            if (
                (there := place + step) <= self._room
                and groups + groups_n[there] < most_groups
                and tokens + tokens_n[there] < most_tokens
                and sequences + sequences_n[there] < most_sequences
                and positions + positions_n[there] < most_positions
            ):
                place = there
                groups += groups_n[place]
                tokens += tokens_n[place]
                sequences += sequences_n[place]
                positions += positions_n[place]
            step //= 2
        if place == self._room:
            return None
        group_id = self._first + place
        return group_id, Sums(groups, tokens, sequences, positions).plus(self._facts[group_id].own)

    def _count(self, group_id: int, change: Sums) -> None:
        for tree, amount in zip(self._trees, change, strict=True):
            place = group_id - self._first + 1
            while place <= self._room:
                tree[place] += amount
                place += place & -place

    def _make_room(self) -> None:
        """Makes trees for the groups that are there, and for as many later ones."""
        self._first = min(self._groups)
        self._room = max(_SMALLEST, 1 << (2 * (max(self._groups) - self._first)).bit_length())
        self._trees = tuple([0] * (self._room + 1) for _ in Sums._fields)
        for group_id, facts in self._facts.items():
            self._count(group_id, facts.own)
