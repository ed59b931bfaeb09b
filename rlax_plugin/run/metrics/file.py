"""``metrics.jsonl``: one line per step, in order and without repetition, also after restarts."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.faults import FaultPoint, reached
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.types import EMPTY

NAME = "metrics.jsonl"
_SHOWN = 5  # numbers of lines in a message

log = logging.getLogger("rlax.controller")


class Recorded(NamedTuple):
    """The content of a file of metrics.

    Attributes:
      by_step: step -> its metrics; the last line of a step counts.
      damaged: numbers of the lines that cannot be read, from 1. The last line of a killed run may
        be a part of one and is not among them.
    """

    by_step: dict[int, dict[str, Any]]
    damaged: list[int]

    def __str__(self) -> str:
        lines = ", ".join(map(str, self.damaged[:_SHOWN])) + ", ..." * (len(self.damaged) > _SHOWN)
        return f"{NAME}: {len(self.damaged)} damaged lines are left out (line {lines})"


def read(content: bytes) -> Recorded:
    """Reads a file's content; each line counts for itself."""
    found = Recorded({}, [])
    *whole, cut = content.split(b"\n")
    for number, line in enumerate([*whole, cut], 1):
        try:
            metrics = json.loads(line)
            step = metrics["step"]
            if type(step) is not int:
                raise TypeError
        except (ValueError, LookupError, TypeError, RecursionError):
            if number <= len(whole):
                found.damaged.append(number)
        else:
            found.by_step[step] = metrics
    return found


def lacking(steps: Iterable[int], last: int) -> str:
    """Returns a sentence about the steps from 1 to ``last`` that have no line; empty: all have one.

    A run goes on without them: they are gone from charts and means, and from nothing else.
    """
    gaps = sorted(set(range(1, last + 1)).difference(steps))
    if not gaps:
        return ""
    shown = ", ".join(map(str, gaps[:_SHOWN])) + ", ..." * (len(gaps) > _SHOWN)
    return f"{NAME}: {len(gaps)} of {last} steps have no line (step {shown})"


def _line(metrics: Mapping[str, float]) -> bytes:
    return json.dumps(metrics).encode() + b"\n"


class MetricsFile:
    """Appends to a local file; if the run is on an object store, ``upload`` copies it there.

    Args:
      files: the run's directory.
      local: directory for the file if the run's directory is not on a local disk.
    """

    def __init__(self, files: RunFiles, local: Path):
        self._files = files
        self._path = Path(files.location(NAME)) if files.is_local else local / NAME
        self._file: IO[bytes] | None = None

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RlaxError(f"{self._path} cannot be written: {error.strerror}") from error

    def rewind(self, step: int, last: Mapping[str, float] = EMPTY) -> list[dict[str, float]]:
        """Truncates the file after ``step`` and opens it; returns the remaining lines.

        Args:
          last: metrics of ``step``, which count if the file lacks them: the process was killed
            between the checkpoint and the end of its step.

        Raises:
          RlaxError: it cannot be written.
        """
        kept = {n: metrics for n, metrics in sorted(self._known().items()) if n <= step}
        # The line of the step itself may have been about to be written.
        if gaps := lacking(kept, step - 1):
            log.warning("%s", gaps)
        if step and last:
            kept.setdefault(step, {"step": step, **last})
        lines = [_line(metrics) for metrics in kept.values()]
        temporary = self._path.with_suffix(".tmp")
        with self._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(b"".join(lines))
            os.replace(temporary, self._path)
            self._file = self._path.open("ab")
        reached(FaultPoint.METRICS_CUT)
        return list(kept.values())

    def _known(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of every step, from the local file and the run's copy together.

        The run may have continued elsewhere since the local file was written, and the copy may end
        with the last checkpoint, so each may lack steps.
        """
        contents = [self._path.read_bytes()] if self._path.exists() else []
        if not self._files.is_local and self._files.exists(NAME):
            contents.append(self._files.get(NAME))
        known: dict[int, dict[str, Any]] = {}
        for recorded in map(read, contents):
            known |= recorded.by_step
            if recorded.damaged:
                log.warning("%s", recorded)
        return known

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends the line of a step.

        Raises:
          RlaxError: the file cannot be written, or another process has taken the run over.
        """
        assert self._file is not None, "rewind opens the file"
        if self._files.is_local:  # then it is a file of the run, to which the other one appends
            self._files.before_write(0.0)
        with self._writing():
            self._file.write(_line({"step": step, **metrics}))
            self._file.flush()
        reached(FaultPoint.METRICS_WRITTEN)

    def upload(self) -> None:
        """Copies the file to the run's directory, if that is elsewhere; blocks."""
        if not self._files.is_local and self._path.exists():
            self._files.put(NAME, self._path.read_bytes())
        reached(FaultPoint.METRICS_COPIED)

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # of a line that could not be written, which was said
                self._file.close()
