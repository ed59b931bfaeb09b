"""Finds training prompts that are problems of an evaluation set, exactly or nearly.

Hashes of the evaluation problems are held in memory. The training prompts are read once, one after
the other, so time is linear in their words, and memory does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rlax_plugin.data.curation.ngrams import GramTable
from rlax_plugin.data.curation.plain_words import words_of

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
