"""The scored groups in a run's journal, in columns that need a few bytes for each group."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_COLUMNS = ("group", "prompt", "step", "passed", "scored", "version", "trained_at")


@dataclass(slots=True)
class _Open:
    """A group that is not scored yet, with its prompt's number and its newest weight version."""

    prompt: int
    version: int = 0


@dataclass(slots=True)
class ScoredGroups:
    """All scored groups, in the order of scoring.

    Attributes:
      asked: id -> number of each prompt that was ever chosen, in the order of the first time.
      samples_saved, tokens_saved: samples and tokens that were not generated because groups were
        cancelled; the tokens are an estimate.
    """

    asked: dict[str, int] = field(default_factory=dict)
    samples_saved: int = 0
    tokens_saved: int = 0
    _columns: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in _COLUMNS}
    )
    _open: dict[int, _Open] = field(default_factory=dict)
    _waiting: dict[int, int] = field(default_factory=dict)  # accepted group -> its row

    def issued(self, first: int, prompts: Sequence[str]) -> None:
        for group, prompt in enumerate(prompts, first):
            self._open[group] = _Open(self.asked.setdefault(prompt, len(self.asked)))

    def generated(self, group: int, version: int) -> None:
        if (one := self._open.get(group)) is not None:
            one.version = max(one.version, version)

    def scored(self, group: int, step: int, passed: int, scored: int, *, accepted: bool) -> None:
        one = self._open.pop(group, _Open(-1))
        if accepted:
            self._waiting[group] = len(self._columns["group"])
        row = (group, one.prompt, step, passed, scored, one.version, 0)
        for name, value in zip(_COLUMNS, row, strict=True):
            self._columns[name].append(value)

    def trained(self, groups: Sequence[int], step: int) -> None:
        for group in groups:
            if (row := self._waiting.pop(group, None)) is not None:
                self._columns["trained_at"][row] = step

    def saved(self, samples: int, tokens: int) -> None:
        """Counts samples and tokens of a group that did not have to be generated."""
        self.samples_saved += samples
        self.tokens_saved += tokens

    def dropped(self, group: int) -> int | None:
        """Removes a dropped group; returns the step in which it was scored, or None."""
        self._open.pop(group, None)
        row = self._waiting.pop(group, None)
        return None if row is None else self._columns["step"][row]

    def column(self, name: str) -> np.ndarray:
        """Returns a column, int64 [scored groups].

        Args:
          name: "group"; "prompt" (the number in ``asked``; -1: not known); "step" and "trained_at"
            (0: it has not trained); "passed" and "scored" (samples); "version" (the newest that
            generated it).
        """
        return np.array(self._columns[name], np.int64)
