"""Inside a process that is asked with lines of JSON; the other side is ``asked``."""

from __future__ import annotations

import json
import os
import resource
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PIECE = 1 << 16  # bytes that are read at once


class Lines:
    """Takes standard input and output: lines to answer, and the answers.

    Whatever the process prints from now on goes where its errors go, and it finds its standard
    input empty. Nothing is read beyond what was sent, so a forked process goes on with the same
    lines.
    """

    def __init__(self) -> None:
        self._asked, self._answers = os.dup(0), os.dup(1)
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self._rest = b""

    def next(self, idle_s: float | None = None) -> bytes:
        """The next line; empty at the end.

        Args:
          idle_s: it also counts as the end if nothing comes for so many seconds; None: it does not,
            because whoever asks ends this process with itself.
        """
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            if idle_s is not None and not select.select([self._asked], [], [], idle_s)[0]:
                return b""
            data = os.read(self._asked, _PIECE)
            if not data:
                return b""
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def say(self, message: Mapping[str, Any]) -> None:
        """Answers; what JSON does not know is written as its text.

        Raises:
          BrokenPipeError: nobody reads it.
        """
        data = memoryview(json.dumps(message, default=str).encode() + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]


def memory_with(more_bytes: int) -> int:
    """The address space of this process in bytes, and so many more: a value of ``RLIMIT_AS``.

    Raises:
      OSError, ValueError: the system does not tell.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + more_bytes
