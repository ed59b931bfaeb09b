"""The journal's content by step: groups and their outcomes, pass rates, weight versions."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlax_plugin.errors import RlaxError
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles

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


ACCEPTED = "accepted"


@dataclass(slots=True)
class StepEvents:
    """The events between two commits of batches, added up.

    Attributes:
      outcomes: outcome -> number of groups: ``ACCEPTED``, the reason of a rejection, or
        "dropped: <reason>". A group counts once: in the step in which it was scored, or was dropped
        without being scored.
      pass_rates: (samples that passed, samples that were scored) -> number of groups.
      samples: number of samples generated of all groups, with those of repeated attempts.
      newest: the newest weight version published when the batch is committed; None: none was.
      generated_with: worker -> the newest weight version that it has generated with by then.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    pass_rates: Counter[tuple[int, int]] = field(default_factory=Counter)
    samples: int = 0
    newest: int | None = None
    generated_with: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """The journal, step by step.

    Attributes:
      steps: step -> its events, in order.
      newest: the newest weight version published; None: none was.
      generated_with: worker -> the newest weight version that it has generated with.
      dropped: group -> reason why it was accepted but not trained.
      groups: the scored groups.
      resumed: steps after which the run was resumed.
      resized: steps before which the number of workers was changed, and the change in words.
      problems: sentences about records that could not be read.
    """

    steps: dict[int, StepEvents] = field(default_factory=dict)
    newest: int | None = None
    generated_with: dict[str, int] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    groups: ScoredGroups = field(default_factory=ScoredGroups)
    resumed: list[int] = field(default_factory=list)
    resized: list[tuple[int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, event: ev.Event, step: int) -> None:
        """Adds an event that belongs to a step."""
        at = self.steps.setdefault(step, StepEvents())
        match event:
            case ev.Issued():
                self.groups.issued(event.first, event.prompts)
            case ev.Scored():
                at.outcomes[event.rejected or ACCEPTED] += 1
                if event.scored:
                    at.pass_rates[event.passed, event.scored] += 1
                accepted = event.rejected is None
                self.groups.scored(event.group, step, event.passed, event.scored, accepted=accepted)
                self.groups.saved(event.samples_saved, event.tokens_saved)
            case ev.Trained():
                self.groups.trained(event.groups, event.step)
            case ev.Dropped():
                self.dropped[event.group] = event.reason
                scored = self.groups.dropped(event.group)
                self.groups.saved(event.samples, event.tokens)
                if scored is not None:
                    at = self.steps[scored]
                    at.outcomes[ACCEPTED] -= 1
                at.outcomes[f"dropped: {event.reason}"] += 1
            case ev.Published():
                self.newest = max(event.version, -1 if self.newest is None else self.newest)
            case ev.Generated():
                if event.sample is None:  # the first turns; later ones are of the same samples
                    at.samples += event.samples
                self.groups.generated(event.group, event.newest_version)
                for worker in event.workers:
                    newest = self.generated_with.get(worker, event.newest_version)
                    self.generated_with[worker] = max(newest, event.newest_version)
            case ev.Resumed():
                self.resumed.append(event.step)
            case ev.Resized():
                self.resized.append((step, f"{event.before} to {event.workers} workers"))


class HistoryReader:
    """Reads the journal of a run; read again, it goes on after the last segment that it knows."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._history, self._step = History(), 0
        self._number, self._checksum = 0, journal.START

    def read(self, files: RunFiles, progress: Callable[[str, int, int], object]) -> History | None:
        """Reads up to the end, or to a damaged segment; returns None if there is no journal.

        Events belong to the step whose batch is committed with them; those after the last batch
        belong to its step.

        Raises:
          RlaxError: the file system fails.
        """
        last = journal.last_number(files)
        if last < self._number or not last:
            self._forget()
        if not last:
            return None
        history = self._history
        history.problems = []
        try:
            for segment, checksum in journal.read(files, self._number, self._checksum, last):
                self._add(segment)
                self._number, self._checksum = segment.number, checksum
                progress("journal", segment.number, last)
        except RlaxError as error:
            history.problems.append(f"{error}; the journal after it is not shown")
        return history

    def _add(self, segment: journal.Segment) -> None:
        history = self._history
        self._step = step = segment.step or max(self._step, 1)
        at = history.steps.setdefault(step, StepEvents())
        for event in segment.events:
            history.add(event, step)
        if segment.step:  # afterwards nothing may be left to generate
            at.newest = history.newest
            at.generated_with = dict(history.generated_with)
