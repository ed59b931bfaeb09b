"""``metrics.jsonl``: one line per step, in order and without repetition, also after restarts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from rlax_plugin.records.faults import FaultPoint, reached
from rlax_plugin.records.files import RunFiles

NAME = "metrics.jsonl"


def by_step(text: str) -> dict[int, dict[str, float]]:
    """Parses a file's text into step -> metrics; the last line of a step counts."""
    found: dict[int, dict[str, float]] = {}
    for line in text.splitlines():
        try:
            metrics = json.loads(line)
            found[metrics["step"]] = metrics
        except (ValueError, LookupError, TypeError):
            break  # the last line of a killed run may be a part of one: nothing after it counts
    return found


class MetricsFile:
    """Appends to a local file; if the run is on an object store, ``upload`` copies it there.

    Args:
      files: the run's directory.
      local: directory for the file if the run's directory is not on a local disk.
    """

    def __init__(self, files: RunFiles, local: Path):
        self._files = files
        self._path = Path(files.location(NAME)) if files.is_local else local / NAME
        self._file: IO[str] | None = None

    def rewind(self, step: int) -> list[dict[str, float]]:
        """Truncates the file after ``step`` and opens it; returns the remaining lines."""
        kept = {n: metrics for n, metrics in sorted(self._known().items()) if n <= step}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(metrics) + "\n" for metrics in kept.values()))
        os.replace(temporary, self._path)
        self._file = self._path.open("a", buffering=1)
        reached(FaultPoint.METRICS_CUT)
        return list(kept.values())

    def _known(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of every step, from the local file and the run's copy together.

        The run may have continued elsewhere since the local file was written, and the copy may end
        with the last checkpoint, so each may lack steps.
        """
        texts = [self._path.read_text()] if self._path.exists() else []
        if not self._files.is_local and self._files.exists(NAME):
            texts.append(self._files.get(NAME).decode())
        return {step: line for text in texts for step, line in by_step(text).items()}

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        assert self._file is not None, "rewind opens the file"
        self._file.write(json.dumps({"step": step, **metrics}) + "\n")
        reached(FaultPoint.METRICS_WRITTEN)

    def upload(self) -> None:
        """Copies the file to the run's directory, if that is elsewhere; blocks."""
        if not self._files.is_local and self._path.exists():
            self._files.put(NAME, self._path.read_bytes())
        reached(FaultPoint.METRICS_COPIED)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
