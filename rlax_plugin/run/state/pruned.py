"""The record of removed samples (see ``rlax.retention``), written before they are removed.

``samples/pruned.json`` covers all segments up to a number, with exceptions. If a process is killed
before it has removed the files, the remaining ones can still be read.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles

NAME = "samples/pruned.json"


@dataclass(frozen=True, slots=True)
class Pruned:
    """The samples that are not kept.

    Attributes:
      until: last segment whose samples are not kept; 0: all are kept.
      step: last step whose batch is not kept.
      kept: segments up to ``until`` whose samples are kept nevertheless.
    """

    until: int = 0
    step: int = 0
    kept: frozenset[int] = frozenset()

    def __contains__(self, segment: int) -> bool:
        return segment <= self.until and segment not in self.kept

    def __str__(self) -> str:
        return f"the samples of steps 1 to {self.step} are not kept (rlax.retention)"


def read_pruned(files: RunFiles) -> Pruned:
    """Reads the record of a run's removed samples.

    Raises:
      RlaxError: the record is damaged, or cannot be read.
    """
    document = files.get_json(NAME)
    if document is None:
        return Pruned()
    try:
        kept = frozenset(int(segment) for segment in document["kept"])
        return Pruned(int(document["until"]), int(document["step"]), kept)
    except (LookupError, TypeError, ValueError) as error:
        raise RlaxError(f"{files.location(NAME)} is damaged: {error!r}") from error


def write_pruned(files: RunFiles, pruned: Pruned) -> None:
    """Writes the record, which must happen before files are removed."""
    document = {"until": pruned.until, "step": pruned.step, "kept": sorted(pruned.kept)}
    files.put_json(NAME, document)
