"""The verdict on a run under chaos: complete, same records and weights, nothing left over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlax_plugin.commands.audit import audit
from rlax_plugin.commands.chaos.blows import Blow
from rlax_plugin.errors import RlaxError
from rlax_plugin.records import events as ev
from rlax_plugin.records import journal
from rlax_plugin.records.files import RunFiles

SHOWS_NOTHING = "no blow was reached: the run shows nothing; give it more steps"

_LAST = 2000  # characters of the trainer's output in a finding


@dataclass(slots=True)
class Fallen:
    """A blow and what became of it.

    Attributes:
      reached: True if its event came and its process was there.
      who: the process that was hit.
      recovered_s: seconds from the blow to the end of the next step; None: there was none.
    """

    blow: Blow
    reached: bool = False
    who: str = ""
    recovered_s: float | None = None

    def __str__(self) -> str:
        if not self.reached:
            return f"{self.blow} ({self.blow.moment}): not reached"
        after = "no step" if self.recovered_s is None else f"a step {self.recovered_s:.1f} s"
        return f"{self.blow} ({self.blow.moment}): {self.who}, {after} later"


@dataclass(slots=True)
class Verdict:
    """The verdict on one seed.

    Attributes:
      findings: all that is wrong; empty: the run has survived.
      explained: sentences of a trainer that a fault has ended.
      restarts: name of a part -> how often the supervisor has started it again.
    """

    seed: int
    fallen: list[Fallen] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns it as a JSON value."""
        return {
            "seed": self.seed,
            "survived": not self.findings,
            "findings": self.findings,
            "explained": self.explained,
            "restarts": self.restarts,
            "wall_s": self.wall_s,
            "blows": [
                {
                    "blow": str(one.blow),
                    "moment": one.blow.moment,
                    "reached": one.reached,
                    "process": one.who,
                    "recovered_s": one.recovered_s,
                }
                for one in self.fallen
            ],
        }


def examine(
    files: RunFiles,
    status: int | None,
    output: str,
    left_over: Sequence[str],
    expected: dict[int, str] | None,
) -> list[str]:
    """Returns all that is wrong with a run that has ended.

    Args:
      status: exit status of the trainer; None: it did not end in time.
      output: of the trainer's processes.
      left_over: processes that have outlived the run.
      expected: version -> digest of an undisturbed run; None: the run is not deterministic.
    """
    found = [f"a process was left over: {one}" for one in left_over]
    if status != 0:
        how = "did not end in time" if status is None else f"ended with status {status}"
        found.append(f"the run {how}: {output[-_LAST:]}")
        return found
    try:
        summary = json.loads(files.get("summary.json"))
        if not summary.get("complete"):
            found.append("the summary says that the run is not complete")
        report = audit(files)
        if report.violation is not None:
            found.append(f"the audit found {report.violation}")
        if expected is not None:
            found += _different(digests(files), expected)
    except (RlaxError, FileNotFoundError, ValueError) as error:
        found.append(f"the records cannot be read: {error}")
    return found


def digests(files: RunFiles) -> dict[int, set[str]]:
    """Returns version -> every digest with which it was published."""
    found: dict[int, set[str]] = {}
    for segment, _ in journal.read(files):
        for event in segment.events:
            if isinstance(event, ev.Published):
                found.setdefault(event.version, set()).add(event.digest)
    return found


def _different(found: dict[int, set[str]], expected: dict[int, str]) -> list[str]:
    for version in sorted(found.keys() | expected.keys()):
        if found.get(version) != {expected.get(version)}:
            return [
                f"version {version} has the digests {sorted(found.get(version, ()))}, and in an "
                f"undisturbed run {expected.get(version)}"
            ]
    return []
