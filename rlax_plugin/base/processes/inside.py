"""The inside of a process that answers lines of JSON; its parent's side is ``asked``."""

from __future__ import annotations

import io
import json
import os
import resource
import select
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from rlax_plugin.base.errors import ConfigError, RlaxError

_PIECE = 1 << 16  # bytes that are read at once


class Lines:
    """Takes over standard input and output for the lines to answer, and the answers.

    From then on the process's own output goes to its standard error, and its standard input is
    empty. It reads no further than the lines that were sent, so a forked process continues with
    the same lines.
    """

    def __init__(self) -> None:
        self._asked, self._answers = os.dup(0), os.dup(1)
        os.dup2(2, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # In order with the errors, and not lost if the process is killed.
            sys.stdout.reconfigure(line_buffering=True)
        self._rest = b""

    def next(self, idle_s: float | None = None) -> bytes:
        """Returns the next line; empty at the end.

        Args:
          idle_s: seconds without a line that also count as the end; None: no limit, because the
            parent ends this process with itself.
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
        """Sends an answer; values that JSON lacks are written as their text.

        Raises:
          BrokenPipeError: the parent has closed the pipe.
        """
        data = memoryview(json.dumps(message, default=str).encode() + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]


def answer_once(work: Callable[[dict[str, Any], Lines], object]) -> NoReturn:
    """Does the work that one line asks for, says how it ended, and ends the process.

    Args:
      work: gets the content of the line, and may say more on the way. Its errors are answers.
    """

    def leave_with_parent() -> None:
        while lines.next():  # until whoever asked has ended, however it did
            pass
        os._exit(1)

    lines = Lines()
    asked = json.loads(lines.next())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        work(asked, lines)
    except ConfigError as error:
        lines.say({"key": error.key, "value": error.value, "reason": error.reason})
    except (RlaxError, OSError) as error:
        lines.say({"error": str(error)})
    else:
        lines.say({"done": True})
    sys.stdout.flush()
    os._exit(0)  # threads of libraries may wait for nothing


def memory_with(more_bytes: int) -> int:
    """Returns the address space of this process plus ``more_bytes``, a value of ``RLIMIT_AS``.

    Raises:
      OSError, ValueError: the address space is unknown.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + more_bytes
