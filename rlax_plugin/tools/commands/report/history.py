"""The journal's content by step: groups with their prompts, pass rates and outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.run.state import events as ev
from rlax_plugin.run.state import journal

ACCEPTED = "accepted"


@dataclass(slots=True)
class StepEvents:
    """The events between two commits of batches.

    Attributes:
      outcomes: outcome -> number of groups: ``ACCEPTED``, the reason of a rejection, or
        "dropped: <reason>". A group counts once: in the step in which it was scored, or was dropped
        without being scored.
      scored: (prompt, samples that passed, samples that were scored) of each scored group.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    scored: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """The journal, step by step.

    Attributes:
      steps: step -> its events, in order.
      asked: ids of the prompts that were ever chosen.
      dropped: group -> reason why it was accepted but not trained.
      resumed: steps after which the run was resumed.
      resized: steps before which the number of workers was changed, and the change in words.
      problems: sentences about records that could not be read.
    """

    steps: dict[int, StepEvents] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    dropped: dict[int, str] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)
    resized: list[tuple[int, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _prompts: dict[int, str] = field(default_factory=dict)  # of groups that are not scored yet
    _accepted_at: dict[int, int] = field(default_factory=dict)  # of groups that have not trained

    def add(self, event: ev.Event, step: int) -> None:
        """Adds an event that belongs to a step."""
        at = self.steps.setdefault(step, StepEvents())
        match event:
            case ev.Issued():
                self.asked.update(event.prompts)
                self._prompts |= enumerate(event.prompts, event.first)
            case ev.Scored():
                at.outcomes[event.rejected or ACCEPTED] += 1
                prompt = self._prompts.pop(event.group, "")
                if event.scored:
                    at.scored.append((prompt, event.passed, event.scored))
                if event.rejected is None:
                    self._accepted_at[event.group] = step
            case ev.Trained():
                for group in event.groups:
                    self._accepted_at.pop(group, None)
            case ev.Dropped():
                self.dropped[event.group] = event.reason
                self._prompts.pop(event.group, None)
                scored_at = self._accepted_at.pop(event.group, None)
                if scored_at is not None:
                    at = self.steps[scored_at]
                    at.outcomes[ACCEPTED] -= 1
                at.outcomes[f"dropped: {event.reason}"] += 1
            case ev.Resumed():
                self.resumed.append(event.step)
            case ev.Resized():
                self.resized.append((step, f"{event.before} to {event.workers} workers"))


def read_history(files: RunFiles, progress: Callable[[str, int, int], object]) -> History | None:
    """Reads the journal up to its end, or to a damaged segment; None if there is no journal.

    Events belong to the step whose batch is committed with them; those after the last batch
    belong to its step.

    Raises:
      RlaxError: the file system fails.
    """
    if not (last := journal.last_number(files)):
        return None
    history, step = History(), 0
    try:
        for segment, _ in journal.read(files, until=last):
            step = segment.step or max(step, 1)
            history.steps.setdefault(step, StepEvents())
            for event in segment.events:
                history.add(event, step)
            progress("journal", segment.number, last)
    except RlaxError as error:
        history.problems.append(f"{error}; the journal after it is not shown")
    return history
