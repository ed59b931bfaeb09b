"""Removes records that ``rlax.retention`` does not keep, and never one that a resume may need.

A resume starts from the newest checkpoint that can be read. It reads the checkpoint's snapshot, the
samples of the groups that were ready then, and all later samples. So the records that the two
newest checkpoints need are kept, and all records while there is only one checkpoint, which may
still be being written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.config import Retention, RlaxSection
from rlax_plugin.ports.training import Trainer
from rlax_plugin.run.state import journal
from rlax_plugin.run.state.pruned import Pruned, read_pruned, write_pruned
from rlax_plugin.run.state.snapshots import read_document, remove_snapshot, snapshot_steps

log = logging.getLogger("rlax.controller")

_AT_ONCE = 64
"""Most segments removed in one turn, so that the next commit does not wait for thousands."""


class Retaining:
    """Removes samples and snapshots, a few at a time; blocking.

    Args:
      checkpoints: steps of the trainer's checkpoints; None: unknown, and no record is removed.
    """

    def __init__(
        self, retention: Retention, files: RunFiles, checkpoints: Callable[[], Iterable[int]] | None
    ):
        self._retention, self._files, self._checkpoints = retention, files, checkpoints
        self._saved: frozenset[int] = frozenset()

    def note_checkpoints(self) -> None:
        """Reads the list of checkpoints, on which removals depend until the next call.

        It is called while the trainer waits, so removals do not depend on the timing of threads.
        """
        if self._checkpoints is not None:
            with _warning():
                self._saved = frozenset(self._checkpoints())

    def remove_some(self) -> bool:
        """Removes some of the oldest removable records; returns True if there may be more.

        Records that cannot be removed stay until the next call.
        """
        with _warning():
            return bool(self._saved) and self._remove_some()
        return False

    def _remove_some(self) -> bool:
        snapshots = snapshot_steps(self._files)
        saved = sorted(self._saved & set(snapshots))
        if len([step for step in snapshots if saved and step <= saved[-1]]) < 2:
            return False
        oldest = saved[-2] if len(saved) > 1 else saved[-1]
        bases = [step for step in snapshots if step >= oldest]
        steps = self._retention.samples_steps
        if steps is not None and self._remove_samples(bases, steps):
            return True
        self._remove_snapshots(snapshots, saved)
        return False

    def _remove_snapshots(self, snapshots: list[int], saved: list[int]) -> None:
        # The newest one's checkpoint may be on its way.
        for step in snapshots:
            if step < saved[-1] and step not in saved:
                remove_snapshot(self._files, step)

    def _remove_samples(self, bases: list[int], steps: int) -> bool:
        """Removes samples; returns True if there were any to remove.

        Args:
          bases: steps of the snapshots that a resume may start from.
          steps: number of newest steps whose samples are kept.
        """
        found = [read_document(self._files, step) for step in bases]
        documents = [document for document in found if document is not None]
        needed = {
            int(segment)
            for document in documents
            for segment in document["run_state"]["ready"].values()
        }
        limit = min(document["segment"] for document in documents)
        before = read_pruned(self._files)
        there = journal.numbers(self._files, journal.SAMPLES)
        goes = [number for number in there if number not in needed]
        until, step = self._until(limit, max(bases) - steps, before)
        kept = frozenset(n for n in there if n <= until and n in needed)
        if (pruned := Pruned(until, step, kept)) != before:
            write_pruned(self._files, pruned)
        due = [number for number in goes if number <= until]
        for number in due[:_AT_ONCE]:
            self._files.delete(journal.samples_name(number))
        return until > before.until or len(due) > 0

    def _until(self, limit: int, last_step: int, before: Pruned) -> tuple[int, int]:
        """Returns the last segment and the last step whose samples are to be removed now.

        Args:
          limit: the last segment whose samples may be removed.
          last_step: the last step whose samples are not kept.
        """
        until, step = before.until, before.step
        for number in range(until + 1, limit + 1):
            its_step = journal.read_one(self._files, number).step
            if its_step is None:
                continue  # its samples go with those of the next batch
            if its_step > last_step or until - before.until >= _AT_ONCE:
                break
            until, step = number, its_step
        return until, step


@contextmanager
def _warning() -> Iterator[None]:
    try:
        yield
    except RlaxError as error:
        log.warning("records that rlax.retention does not keep are still there: %s", error)


def retaining(section: RlaxSection, files: RunFiles, trainer: Trainer) -> Retaining:
    """Returns the object that removes a run's records.

    Raises:
      ConfigError: samples are to be removed, and the trainer cannot list its checkpoints.
    """
    retention = section.retention
    if trainer.keeps_checkpoints:
        return Retaining(retention, files, trainer.checkpoints)
    if retention.samples_steps is not None:
        reason = (
            f"trainer {section.trainer.name} does not declare keeps_checkpoints, so that nothing "
            "tells which samples a resume needs: leave this out"
        )
        raise ConfigError("rlax.retention.samples_steps", retention.samples_steps, reason)
    return Retaining(retention, files, None)
