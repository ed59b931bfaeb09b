"""Finds training prompts that are problems of an evaluation set, exactly or nearly.

Hashes of the evaluation problems are held in memory. The training prompts are read once, one after
the other, so time is linear in their words, and memory does not depend on their number.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KINDS = ("same id", "same text", "same words", "shared words")
"""Kinds of matches, the surest first; a prompt counts once per set, as its surest kind."""

SAME_ID, SAME_TEXT, SAME_WORDS, SHARED = range(4)
WORDS = 13
"""Number of consecutive words that two texts must share, as in GPT-3 and most later work."""

_WHOLE_FROM = 8  # words of a problem shorter than ``WORDS`` that is looked for as a whole


class Problem(NamedTuple):
    """A problem of an evaluation set: the number of the set and the id of the problem."""

    held_out: int
    id: str


@dataclass(frozen=True, slots=True)
class Match:
    """A training prompt that is in an evaluation set.

    Attributes:
      prompt: index of the training prompt.
      problem: number of the problem, see ``Sets.problems``.
      kind: index into ``KINDS``.
    """

    prompt: int
    problem: int
    kind: int


class Sets:
    """An index of the problems of all evaluation sets, in which training prompts are looked up.

    Args:
      words: number of consecutive words that count as an overlap. A problem with fewer words, but
        at least 8, is searched for as a whole. A problem with fewer than 8 must be the same text,
        apart from what ``words_of`` leaves out.

    Attributes:
      names: names of the sets.
      problems: problems of all sets, in the order in which they were added.
      common: number of n-grams that consist mostly of their set's template (consecutive words that
        many of its problems share); they are not searched for. Known after the first look-up.
    """

    def __init__(self, words: int = WORDS):
        self.names: list[str] = []
        self.problems: list[Problem] = []
        self.common = 0
        self._length = words
        self._ids: dict[str, list[int]] = {}
        self._texts: dict[str, list[int]] = {}
        self._same_words: dict[tuple[int, ...], list[int]] = {}
        self._vocabulary: dict[str, int] = {}  # from 1 on; 0 is every other word
        # length -> the words of problems of this length, and their numbers with those of their sets
        self._grams: dict[int, list[tuple[list[int], tuple[int, int]]]] = {}
        self._tables: list[GramTable] | None = None

    def add(self, name: str, problems: Iterable[tuple[str, str]]) -> None:
        """Adds an evaluation set.

        Args:
          problems: (id, text) of each.
        """
        held_out = len(self.names)
        self.names.append(name)
        self._tables = None
        for prompt_id, text in problems:
            number = len(self.problems)
            self.problems.append(Problem(held_out, prompt_id))
            self._ids.setdefault(prompt_id, []).append(number)
            self._texts.setdefault(text, []).append(number)
            words = words_of(text)
            vocabulary = self._vocabulary
            codes = [vocabulary.setdefault(word, len(vocabulary) + 1) for word in words]
            if codes:  # a text without words is like no other
                self._same_words.setdefault(tuple(codes), []).append(number)
            length = min(self._length, len(codes))
            if length == self._length or length >= _WHOLE_FROM:
                self._grams.setdefault(length, []).append((codes, (number, held_out)))

    @property
    def ids(self) -> list[str]:
        """The ids of all problems."""
        return list(self._ids)

    def with_id(self, prompt_id: str) -> list[int]:
        """Returns the numbers of the problems with an id."""
        return self._ids.get(prompt_id, [])

    def look_up(self, first: int, texts: Sequence[str]) -> Iterator[Match]:
        """Yields the matches of some texts: for each text and set only the surest kind.
        Args:
          first: index of the first text.
        """
        if self._tables is None:
            self._tables = [
                GramTable(length, *zip(*rows, strict=True)) for length, rows in self._grams.items()
            ]
            self.common = sum(table.common for table in self._tables)
        known, flat, owner = self._vocabulary.get, [], []
        for row, text in enumerate(texts):
            seen: set[int] = set()
            yield from self._new(first + row, self._texts.get(text, ()), SAME_TEXT, seen)
            codes = [known(word, 0) for word in words_of(text)]
            if codes and 0 not in codes:
                same = self._same_words.get(tuple(codes), ())
                yield from self._new(first + row, same, SAME_WORDS, seen)
            flat += codes
            flat.append(0)  # no stretch reaches into the next text
            owner.append((len(flat), seen))
        yield from self._shared(first, np.array(flat, np.int64), owner)

    def _shared(
        self, first: int, flat: np.ndarray, owner: Sequence[tuple[int, set[int]]]
    ) -> Iterator[Match]:
        ends = np.array([end for end, _ in owner], np.int64)
        sets = np.array([one.held_out for one in self.problems], np.int64)
        for table in self._tables or ():
            place, problem = table.find(flat)
            row = np.searchsorted(ends, place, side="right")
            # However many stretches two texts share, they are one match.
            _, once = np.unique(row * len(self.names) + sets[problem], return_index=True)
            for one in once.tolist():
                number = int(row[one])
                yield from self._new(first + number, (int(problem[one]),), SHARED, owner[number][1])

    def _new(
        self, prompt: int, problems: Iterable[int], kind: int, seen: set[int]
    ) -> Iterator[Match]:
        for problem in problems:
            if (held_out := self.problems[problem].held_out) not in seen:
                seen.add(held_out)
                yield Match(prompt, problem, kind)


# An operator counts as a word, because 2 + 3 and 2 x 3 are two problems. A hyphen, a star and a
# slash are also punctuation: they count before a number or a bracket. Scripts without spaces are
# read character by character.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f]"
    r"|[0-9]+(?:[.,][0-9]+)*"
    r"|(?:(?![\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\u0e00-\u0e7f])[^\W0-9_])+"
    r"|[-*/](?= {0,3}[0-9(])"
    r"|[+=<>^%\u00b1\u00d7\u00f7\u2200-\u22ff]"
)
_ASCII_WORD = re.compile(r"[0-9]+(?:[.,][0-9]+)*|[a-z]+|[-*/](?= {0,3}[0-9(])|[+=<>^%]")
# Shown as nothing: a copy may have them anywhere.
_INVISIBLE = dict.fromkeys(
    (0xAD, 0x34F, 0x61C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F),
     *range(0x2060, 0x2070), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE0080))
)  # fmt: skip
_DASHES: dict[int, str] = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2014, 0x2212), "-")


def words_of(text: str) -> list[str]:
    """Returns the words, numbers and operators of a text, in order.

    Case, white space, punctuation, invisible characters, and Unicode variants of a character (NFKC)
    make no difference. Letters of two scripts that merely look alike stay different.
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    plain = unicodedata.normalize("NFKC", text.translate(_INVISIBLE)).casefold()
    # Once more: folding may have made characters that NFKC writes otherwise.
    plain = unicodedata.normalize("NFKC", plain).translate(_DASHES)
    return _WORD.findall(plain)


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
