"""The finished part of a table of pass rates: numbered files beside it, written atomically.

A process that is killed loses only the prompts since its last part. They are generated again, with
the same seeds.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from rlax_plugin.base.errors import ConfigError, RlaxError
from rlax_plugin.base.files.private import check_private, make_private
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.data.curation.pass_rate_files import About, measured, packed, unpacked
from rlax_plugin.run.evaluation.problems import Answered

_ABOUT = "about.json"
_ROWS = 4096  # of a part, at most
_FIRST_S, _LONGEST_S = 1.0, 30.0  # between two parts; each time twice as long
_SHOWN = 120  # characters of a value in a message


class Counts(NamedTuple):
    """The counts of one prompt; all but ``index`` are numbers of samples, or of their tokens."""

    index: int
    passed: int
    failed: int
    truncated: int
    tokens: int
    errored: int

    @classmethod
    def of(cls, index: int, answered: Answered, pass_threshold: float) -> Counts:
        """Counts a prompt's samples; unscored ones count neither as passed nor as failed."""
        scored = np.isfinite(answered.rewards_n)
        passed = int(np.count_nonzero(answered.rewards_n[scored] >= pass_threshold))
        return cls(
            index=index,
            passed=passed,
            failed=int(scored.sum()) - passed,
            truncated=int(np.count_nonzero(answered.truncated_n)),
            tokens=int(answered.lengths_n.sum()),
            errored=int(np.count_nonzero(~scored)),
        )


class Parts:
    """The parts of one measurement.

    Args:
      out: file of the final result; the parts are in ``<out>.parts/``.
      prompts: number of prompts.
      about: description of the measurement, stored in every part.

    Attributes:
      out, place: the file, and the directory of the parts.
      counts: int64 [fields of ``Counts`` except the index, prompts].
      done_n: bool, True for finished prompts.
    """

    def __init__(self, out: str, prompts: int, about: About):
        self.place = f"{out}.parts"
        self.out, self._files, self._about = out, RunFiles(self.place), about
        self.done_n = np.zeros(prompts, bool)
        self.counts = np.zeros((len(Counts._fields) - 1, prompts), np.int64)
        self._rows: list[Counts] = []
        self._next, self._part_s, self._written_s = 1, _FIRST_S, time.monotonic()
        self._writing = threading.Lock()
        self._lock: IO[str] | None = None

    def begin(self, what: Mapping[str, Any]) -> None:
        """Continues from existing parts, if there are any.

        Args:
          what: name -> value of everything on which a pass rate depends.

        Raises:
          ConfigError: the parts belong to another measurement, or another process writes them.
          RlaxError: a part is damaged.
        """
        self._locked()
        wanted = json.loads(json.dumps(what))
        known = self._files.get_json(_ABOUT)
        if known is None:
            self._files.put_json(_ABOUT, wanted)
        elif known != wanted:
            self._reject(known, wanted)
        for name in self._files.names(""):
            number = name.removesuffix(".parquet")
            if name.endswith(".parquet") and number.isdigit():
                self._read(name)
                self._next = max(self._next, int(number) + 1)

    def _locked(self) -> None:
        if not self._files.is_local:
            return
        place = Path(self._files.location())
        try:
            make_private(place)
            check_private("--out", self.out, place)
            self._lock = (place / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("--out", self.out, "is being measured by another process") from None
        except OSError as error:
            raise ConfigError("--out", self.out, f"cannot be written: {error}") from error

    def _reject(self, known: Any, wanted: Mapping[str, Any]) -> None:
        before = known if isinstance(known, Mapping) else {}
        said = [
            f"{name} {_shown(before.get(name))} then, {_shown(wanted.get(name))} now"
            for name in sorted(before.keys() | wanted.keys())
            if before.get(name) != wanted.get(name)
        ]
        reason = (
            f"was begun with something else ({'; '.join(said)}): give another --out, or remove "
            f"{self.place}"
        )
        raise ConfigError("--out", self.out, reason)

    def _read(self, name: str) -> None:
        place = self._files.location(name)
        part = unpacked(self._files.get(name), place)
        index = part.column("index")
        if len(index) and not 0 <= index.min() <= index.max() < len(self.done_n):
            raise RlaxError(f"{place} has a prompt that is not there: remove this file")
        for row, field in enumerate(Counts._fields[1:]):
            self.counts[row, index] = part.column(field).astype(np.int64)
        self.done_n[index] = True

    async def add(self, counts: Counts) -> None:
        """Adds a finished prompt; from time to time writes a part, off the event loop."""
        self._rows.append(counts)
        if len(self._rows) >= _ROWS or time.monotonic() - self._written_s > self._part_s:
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Writes the finished prompts; blocks.

        Raises:
          RlaxError: they cannot be written; the next call tries again.
        """
        with self._writing:
            rows, self._written_s = list(self._rows), time.monotonic()
            if not rows:
                return
            columns = dict(zip(Counts._fields, np.array(rows, np.int64).T, strict=True))
            ids = [str(index) for index in columns["index"]]  # the result has the prompts' own
            part = measured({**columns, "id": ids}, self._about)
            self._files.put(f"{self._next:08d}.parquet", packed(part))
            del self._rows[: len(rows)]  # others may have come meanwhile
            for row, field in enumerate(Counts._fields[1:]):
                self.counts[row, columns["index"]] = columns[field]
            self.done_n[columns["index"]] = True
            self._next += 1
            self._part_s = min(_LONGEST_S, 2 * self._part_s)

    def close(self) -> None:
        """Releases the parts for other processes."""
        if self._lock is not None:
            self._lock.close()

    def remove(self) -> None:
        """Removes all parts, once the result is written."""
        with suppress(FileNotFoundError):
            self._files.delete("")


def _shown(value: Any) -> str:
    return one_line(json.dumps(value), _SHOWN)
