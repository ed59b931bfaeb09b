"""Reads ``metrics.jsonl`` into columns; read again, it decodes only the lines that are new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from rlax_plugin.errors import RlaxError
from rlax_plugin.metrics import file
from rlax_plugin.records.files import RunFiles

Columns = dict[str, list[float]]
"""Metric -> a value per recorded step, NaN where a step has none; always has "step"."""


@dataclass(slots=True)
class _Read:
    """The beginning of the file, up to the end of a line, as it was read last.

    Attributes:
      nbytes, crc32c: its length and checksum.
      lines: its number of lines.
      damaged: numbers of the damaged lines, from 1.
    """

    columns: Columns = field(default_factory=lambda: {"step": []})
    nbytes: int = 0
    crc32c: int = 0
    lines: int = 0
    damaged: list[int] = field(default_factory=list)


class MetricsReader:
    """Reads the metrics of a run, which may grow meanwhile."""

    def __init__(self) -> None:
        self._read = _Read()

    def read(self, files: RunFiles, missing: list[str]) -> Columns:
        """Returns all columns so far, in the order of the steps.

        Args:
          missing: gets a sentence about damaged lines.

        Raises:
          RlaxError: there are no metrics yet, or the file cannot be read.
        """
        try:
            content = files.get(file.NAME)
        except FileNotFoundError:
            self._read = _Read()
            raise RlaxError("metrics.jsonl does not exist: no step has ended yet") from None
        known = self._read
        if google_crc32c.value(content[: known.nbytes]) != known.crc32c:
            known = self._read = _Read()  # a resume has cut the file, and written other lines
        new = content[known.nbytes : content.rfind(b"\n") + 1]
        recorded = file.read(new)
        steps = known.columns["step"]
        if steps and min(recorded.by_step, default=steps[-1] + 1) <= steps[-1]:
            self._read = _Read()  # a step is recorded twice: the last line counts
            return self.read(files, missing)
        for step in sorted(recorded.by_step):
            _append(known.columns, recorded.by_step[step])
        known.damaged += [known.lines + number for number in recorded.damaged]
        known.lines += new.count(b"\n")
        known.nbytes += len(new)
        known.crc32c = google_crc32c.value(content[: known.nbytes])
        if known.damaged:
            missing.append(str(file.Recorded({}, known.damaged)))
        return {name: known.columns[name] for name in sorted(known.columns)}


def _append(columns: Columns, row: Mapping[str, Any]) -> None:
    count = len(columns["step"])
    for name, value in row.items():
        if (column := columns.get(name)) is None:
            column = columns[name] = []
        if len(column) < count:  # absent since
            column.extend([math.nan] * (count - len(column)))
        column.append(float(value) if isinstance(value, int | float) else math.nan)
    for column in columns.values():
        if len(column) == count:
            column.append(math.nan)
