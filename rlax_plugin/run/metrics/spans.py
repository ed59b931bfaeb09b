"""``spans.jsonl``: which part of a run was busy when, in one line per step.

A line is ``{"step", "from_s", "to_s", "spans": [[lane, activity, began_s, duration_s], ...]}``.
``from_s`` is a Unix time; all other times are seconds since then, by a monotonic clock. The step
ends at ``to_s``. A line has at most about ``_MOST`` spans, so its size does not grow with the
number of groups; the smallest gaps between spans are closed first.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles

NAME = "spans.jsonl"
TRAINER = "trainer"
_MOST = 256  # spans of workers of a step
_MOST_OF_LANE = 32
_DIGITS = 4  # a tenth of a millisecond
_LEAST_S = 1e-4
_MOST_UPLOADED = 4 << 20  # bytes: those of the last steps

log = logging.getLogger("rlax.controller")

Interval = tuple[float, float]
"""Beginning and end, in seconds."""


class Span(NamedTuple):
    """A time in which a part of a run was busy.

    Attributes:
      lane: the part, such as ``trainer`` or ``worker local-0``.
      activity: a short text, the same for the same activity.
      began_s, ended_s: see the user.
    """

    lane: str
    activity: str
    began_s: float
    ended_s: float


class StepOfSpans(NamedTuple):
    """A line of the file; all times are Unix times in seconds."""

    step: int
    began_s: float
    ended_s: float
    spans: tuple[Span, ...]


def merged(intervals: Iterable[Interval], most: int) -> list[Interval]:
    """Returns the union of intervals, ascending; the smallest gaps are closed if there are many.

    Args:
      most: number of intervals that remain at most.
    """
    found: list[Interval] = []
    for began, ended in sorted(intervals):
        if found and began <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended)
        else:
            found.append((began, ended))
    if len(found) <= most:
        return found
    gaps = [after[0] - before[1] for before, after in itertools.pairwise(found)]
    kept = sorted(sorted(range(len(gaps)), key=lambda i: (-gaps[i], i))[: most - 1])
    firsts, lasts = [0, *(i + 1 for i in kept)], [*kept, len(found) - 1]
    return [(found[a][0], found[b][1]) for a, b in zip(firsts, lasts, strict=True)]


def bounded(spans: Sequence[Span], workers: int) -> list[Span]:
    """Returns spans, those of the same lane and activity merged, in the order of their beginning.

    Args:
      workers: number of workers; if there are more than ``_MOST``, some lanes are left out.
    """
    most = max(1, min(_MOST_OF_LANE, _MOST // max(workers, 1)))
    of_activity: dict[tuple[str, str], list[Interval]] = {}
    for lane, activity, began, ended in spans:
        if len(of_activity) < 2 * _MOST or (lane, activity) in of_activity:
            of_activity.setdefault((lane, activity), []).append((began, ended))
    found = [
        Span(*key, *one)
        for key, intervals in of_activity.items()
        for one in merged(intervals, most)
    ]
    return sorted(found, key=lambda span: (span.began_s, span.ended_s))


class SpansFile:
    """Appends to a local file; if the run is on an object store, ``upload`` copies its end there.

    A resumed run repeats steps; the last line of a step counts. Nothing that fails here ends the
    run: it is logged once.

    Args:
      files: the run's directory.
      local: directory for the file if the run's directory is not on a local disk.
    """

    def __init__(self, files: RunFiles, local: Path):
        self._files = files
        self._path = Path(files.location(NAME)) if files.is_local else local / NAME
        self._file: IO[str] | None = None
        self._failed = False
        self._is_new = not self._path.exists()  # lines of another machine are elsewhere
        self._earlier: bytes | None = None
        self._unix_s = time.time() - time.perf_counter()

    def add(self, step: int, began_s: float, ended_s: float, spans: Sequence[Span]) -> None:
        """Appends a step; a disk that is full is logged once, and does not end the run.

        Args:
          began_s, ended_s: of the step, as of its spans, by ``time.perf_counter``.
        """
        rows = [
            [lane, activity, round(began - began_s, _DIGITS), round(ended - began, _DIGITS)]
            for lane, activity, began, ended in spans
            if ended - began >= _LEAST_S
        ]
        document = {
            "step": step,
            "from_s": round(self._unix_s + began_s, _DIGITS),
            "to_s": round(ended_s - began_s, _DIGITS),
            "spans": rows,
        }
        try:
            if self._file is None:
                self._file = self._opened()
            self._file.write(json.dumps(document, separators=(",", ":")) + "\n")
        except OSError as error:
            self._lost(f"incomplete from step {step} on", error)

    def _opened(self) -> IO[str]:
        torn = self._path.exists() and self._path.stat().st_size > 0
        file = self._path.open("a", buffering=1)
        if torn:  # perhaps: a process may have been killed in the midst of a line
            file.write("\n")
        return file

    def _lost(self, what: str, error: Exception) -> None:
        if not self._failed:
            log.warning("%s is %s: %s", self._path, what, error)
        self._failed = True

    def upload(self) -> None:
        """Copies the end of the file to the run's directory, if that is elsewhere; blocks."""
        if self._files.is_local or not self._path.exists():
            return
        try:
            if self._earlier is None:
                self._earlier = self._files.get(NAME) if self._is_new else b""
        except (RlaxError, FileNotFoundError):
            self._earlier = b""
        try:
            whole = self._earlier + self._path.read_bytes()
            self._files.put(NAME, whole[-_MOST_UPLOADED:])
        except (RlaxError, OSError) as error:
            self._lost("not copied to the run's directory", error)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def read(content: bytes) -> list[StepOfSpans]:
    """Returns the steps in a file's content, ascending; damaged lines are left out."""
    found: dict[int, StepOfSpans] = {}
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            one = _decoded(json.loads(line))
        except (ValueError, LookupError, TypeError):
            continue
        found[one.step] = one
    return [found[step] for step in sorted(found)]


def _decoded(document: Mapping[str, Any]) -> StepOfSpans:
    began_s = float(document["from_s"])
    spans = tuple(
        Span(str(lane), str(activity), began_s + began, began_s + began + duration)
        for lane, activity, began, duration in document["spans"]
    )
    return StepOfSpans(int(document["step"]), began_s, began_s + float(document["to_s"]), spans)
