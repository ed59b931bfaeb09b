"""What a measurement has finished so far: numbered files beside the result, each written whole.

A process that is killed loses the prompts since its last part, and no more: they are asked again,
with the same seeds.
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

from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.evaluation.problems import Answered
from rlax_plugin.pass_rates.files import About, measured, packed, unpacked
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.private import check_private, make_private
from rlax_plugin.text.harmless import one_line

_ABOUT = "about.json"
_ROWS = 4096  # of a part, at most
_FIRST_S, _LONGEST_S = 1.0, 30.0  # between two parts; each time twice as long
_SHOWN = 120  # characters of a value in a message


class Counts(NamedTuple):
    """What came of one prompt; all but ``index`` are numbers of samples, or of their tokens."""

    index: int
    passed: int
    failed: int
    truncated: int
    tokens: int
    errored: int

    @classmethod
    def of(cls, index: int, answered: Answered, pass_threshold: float) -> Counts:
        """Counts a prompt's samples; one that could not be scored neither passed nor failed."""
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
      out: the file that the measurement will become; its parts are in ``<out>.parts/``.
      prompts: their number.
      about: of every part.

    Attributes:
      counts: int64 [fields of ``Counts`` but the index, prompts].
      done_n: bool, which prompts are finished.
    """

    def __init__(self, out: str, prompts: int, about: About):
        self.place = f"{out}.parts"
        self._files, self._out, self._about = RunFiles(self.place), out, about
        self.done_n = np.zeros(prompts, bool)
        self.counts = np.zeros((len(Counts._fields) - 1, prompts), np.int64)
        self._rows: list[Counts] = []
        self._next, self._part_s, self._written_s = 1, _FIRST_S, time.monotonic()
        self._writing = threading.Lock()
        self._lock: IO[str] | None = None

    def begin(self, what: Mapping[str, Any]) -> None:
        """Goes on with the parts that are there, if any.

        Args:
          what: is measured, and how: name -> value, all that a pass rate depends on.

        Raises:
          ConfigError: they are of something else, or another process writes them.
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
            check_private("--out", self._out, place)
            self._lock = (place / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("--out", self._out, "is being measured by another process") from None
        except OSError as error:
            raise ConfigError("--out", self._out, f"cannot be written: {error}") from error

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
        raise ConfigError("--out", self._out, reason)

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
        """Takes a finished prompt; now and then writes a part, off the event loop."""
        self._rows.append(counts)
        if len(self._rows) >= _ROWS or time.monotonic() - self._written_s > self._part_s:
            await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Writes what is finished; blocking.

        Raises:
          RlaxError: it cannot be written; then it is kept for the next time.
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
        """Lets other processes go on."""
        if self._lock is not None:
            self._lock.close()

    def remove(self) -> None:
        """Removes all parts: the result is written."""
        with suppress(FileNotFoundError):
            self._files.delete("")


def _shown(value: Any) -> str:
    return one_line(json.dumps(value), _SHOWN)
