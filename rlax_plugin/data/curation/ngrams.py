"""Word n-grams: a sorted table of the hashes of known texts' n-grams, to find them in others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Words in a row that so many problems of a set have, and this share of them, are its template.
_TEMPLATE, _COMMON, _COMMON_SHARE = 5, 3, 0.05
_OWN = 0.5  # share of a stretch's words that must not be of a template
_BASE = np.uint64(0x9E3779B97F4A7C15)


class GramTable:
    """The n-grams of one length, by hash.

    Args:
      length: number of words.
      codes: for each text, of at least ``length`` words, a number above 0 for each word.
      problems: for each text, the number of the problem and that of its set.

    Attributes:
      common: number of n-grams left out because they consist mostly of a template.
    """

    def __init__(
        self, length: int, codes: Sequence[Sequence[int]], problems: Sequence[tuple[int, int]]
    ):
        self._length = length
        self._flat = flat = np.concatenate([np.array([*one, 0], np.int64) for one in codes])
        ends = np.cumsum([len(one) + 1 for one in codes])
        problem, held_out = np.array(problems, np.int64).T
        start, hashes = _hashes(flat, length)
        owner = np.searchsorted(ends, start, side="right")
        before = np.cumsum(np.r_[0, _template(flat, ends, held_out)])
        own = length - (before[start + length] - before[start]) >= _OWN * length
        # Of each set that has a stretch, one problem is enough.
        order = np.lexsort((owner, held_out[owner], hashes))
        first = order[_changes(hashes[order], held_out[owner][order])]
        self.common = int(np.count_nonzero(~own[first]))
        kept = first[own[first]]
        self._hashes, self._start = hashes[kept], start[kept]
        self._problem = problem[owner[kept]]

    def find(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Finds the n-grams of other texts that are in the table.

        Args:
          flat: codes of the texts' words, concatenated; 0 for a word that no known text has, and
            for the end of a text.

        Returns:
          place, problem: of each hit, its start in ``flat`` and a problem that contains it; one
            problem for each set.
        """
        place, hashes = _hashes(flat, self._length)
        row = np.searchsorted(self._hashes, hashes)
        found = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        span = np.arange(self._length)
        while True:  # once for each set that has the same stretch
            there = np.flatnonzero(row < len(self._hashes))
            there = there[self._hashes[row[there]] == hashes[there]]
            if not len(there):
                break
            place, hashes, row = place[there], hashes[there], row[there]
            ours = self._flat[self._start[row][:, None] + span]
            same = (flat[place[:, None] + span] == ours).all(axis=1)  # hashes may be by accident
            found.append((place[same], self._problem[row[same]]))
            row = row + 1
        places, problems = zip(*found, strict=True)
        return np.concatenate(places), np.concatenate(problems)


def _template(flat: np.ndarray, ends: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Returns bool [words]: True for words of a passage that many problems of a set share.

    Args:
      ends: end of each problem's words in ``flat``.
      held_out: number of each problem's set.
    """
    start, hashes = _hashes(flat, _TEMPLATE)
    owner = np.searchsorted(ends, start, side="right")
    order = np.lexsort((owner, held_out[owner], hashes))
    start, owner, hashes = start[order], owner[order], hashes[order]
    new = _changes(hashes, held_out[owner])
    group = np.cumsum(new) - 1
    having = np.bincount(group, weights=new | _changes(owner), minlength=1)
    least = np.maximum(_COMMON, _COMMON_SHARE * np.bincount(held_out)[held_out[owner]])
    marked = np.zeros(len(flat), bool)
    for offset in range(_TEMPLATE):
        marked[start[having[group] >= least] + offset] = True
    return marked


def _changes(*columns: np.ndarray) -> np.ndarray:
    """Returns bool [rows]: True if a row of sorted columns differs from the one before it."""
    changed = np.ones(len(columns[0]), bool)
    changed[1:] = np.any([one[1:] != one[:-1] for one in columns], axis=0)
    return changed


def _hashes(flat: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns (start, hash) of each n-gram that contains no 0."""
    count = len(flat) - length + 1
    if count <= 0:
        return np.zeros(0, np.int64), np.zeros(0, np.uint64)
    zeros = np.cumsum(np.r_[0, flat == 0])
    start = np.flatnonzero(zeros[length:] == zeros[:count])
    mixed = _mixed(flat.astype(np.uint64))
    found = np.zeros(len(start), np.uint64)
    for offset in range(length):
        found = found * _BASE + mixed[start + offset]
    return start, _mixed(found)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns the values hashed to evenly spread 64-bit numbers (splitmix64)."""
    values = (values + _BASE) * np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
