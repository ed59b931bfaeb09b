"""Compares the controller's snapshots with the sum of the events up to their segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.files.seals import unsealed
from rlax_plugin.tools.commands.audit.event_order import History
from rlax_plugin.tools.commands.audit.report import Findings, Rule

DIRECTORY = "controller"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The comparable part of a snapshot; its memory grows with the number of live groups.

    Attributes:
      open: group id -> prompt id, min_version, attempt.
      ready: group id -> segment whose rollouts file contains it.
    """

    step: int
    segment: int
    checksum: str
    next_id: int
    next_step: int
    open: dict[int, tuple[str, int, int]]
    ready: dict[int, int]


class Snapshots:
    """The snapshots in a run's directory, each compared when the audit reaches its segment.

    They must be read before the journal, so the newest snapshot of a running run has its segment.
    """

    def __init__(self, files: RunFiles, findings: Findings):
        self._findings = findings
        self._waiting: list[Snapshot] = []
        self._damaged: list[tuple[int, str]] = []
        for name in files.names(DIRECTORY):
            if (stem := name.removesuffix(".json")).isdecimal():
                self._read(files, f"{DIRECTORY}/{name}", int(stem))
        self._waiting.sort(key=lambda s: (s.segment, s.step))

    def _read(self, files: RunFiles, name: str, step: int) -> None:
        try:
            snapshot = _parse(unsealed(files.get(name)))
        except FileNotFoundError:
            return  # its checkpoint was pruned a moment ago
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            self._damaged.append((step, f"{name} is damaged: {error!r}"))
            return
        if snapshot.step != step:
            self._damaged.append((step, f"{name} contains the snapshot of {snapshot.step}"))
        else:
            self._waiting.append(snapshot)

    def compare(self, segment: int, checksum: str, history: History) -> None:
        """Compares the snapshots that were taken after ``segment``."""
        while self._waiting and self._waiting[0].segment <= segment:
            snapshot = self._waiting.pop(0)
            if problem := _difference(snapshot, checksum, history):
                self._differs(snapshot.step, problem[0], problem[1])

    def end(self, last_segment: int) -> None:
        """Reports snapshots whose segment is missing."""
        for snapshot in self._waiting:
            message = f"expected a journal up to segment {snapshot.segment}, found {last_segment}"
            self._differs(snapshot.step, message)
        for step, problem in self._damaged:
            self._differs(step, problem)

    def _differs(self, step: int, problem: str, group: int | None = None) -> None:
        message = f"the snapshot of step {step}: {problem}"
        self._findings.violation(Rule.SNAPSHOT_DIFFERS, message, step=step, group=group)


def _parse(document: dict[str, Any]) -> Snapshot:
    run_state = document["run_state"]
    return Snapshot(
        step=document["step"],
        segment=document["segment"],
        checksum=document["checksum"],
        next_id=run_state["next_id"],
        next_step=run_state["next_step"],
        open={o["group"]: (o["prompt"], o["min_version"], o["attempt"]) for o in run_state["open"]},
        ready={int(group): segment for group, segment in run_state["ready"].items()},
    )


def _difference(
    snapshot: Snapshot, checksum: str, history: History
) -> tuple[str, int | None] | None:
    """Returns the first difference and the group that it concerns; None if there is none."""
    open_, ready = {}, {}
    for group, one in history.alive.items():
        if one.scored is None:
            open_[group] = (one.prompt, one.min_version, one.attempt)
        else:
            ready[group] = one.segment
    facts = (
        ("the checksum of its segment", checksum, snapshot.checksum),
        ("the next group", history.next_id, snapshot.next_id),
        ("the next step", history.next_step, snapshot.next_step),
        ("its own step", history.next_step - 1, snapshot.step),
    )
    for name, wanted, found in facts:
        if wanted != found:
            return f"{name}: expected {wanted}, as the journal says, found {found}", None
    for name, wanted, found in (("open", open_, snapshot.open), ("ready", ready, snapshot.ready)):
        for group in sorted(wanted.keys() | found.keys()):
            if wanted.get(group) != found.get(group):
                return (
                    f"{name} group {group}: expected {wanted.get(group, 'none')}, as the journal "
                    f"says, found {found.get(group, 'none')}"
                ), group
    return None
