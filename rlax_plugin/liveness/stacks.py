"""Asks processes of a run for the stacks of their threads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rlax_plugin.liveness.marks import SIGNAL, Mark, lives, state
from rlax_plugin.liveness.plain_files import size, tail

_LONGEST = 1 << 18  # bytes that are read of the stacks of one process
_POLL_S = 0.05
HEADING = "=== "
"""The beginning of the line above stacks that a process writes by itself."""
_SETTLED_S = 0.2  # without another byte: faulthandler writes line by line


def ask(processes: Iterable[Mark], within_s: float) -> dict[Mark, str]:
    """Returns the stacks of each process, or a sentence on why there are none.

    Args:
      within_s: seconds in which all of them must have written theirs.
    """
    until_s = time.monotonic() + within_s
    sizes: dict[Mark, int] = {}
    said: dict[Mark, str] = {}
    for mark in processes:
        before = size(mark.stacks)
        if why := _signal(mark):
            said[mark] = why
        else:
            sizes[mark] = before
    for mark, before in sizes.items():
        said[mark] = _written(mark, before, until_s) or (
            f"it has written no stacks within {within_s:g} s: it is stuck in the kernel, as with "
            "a disk that does not answer"
        )
    return said


def newest(mark: Mark) -> str:
    """Returns the stacks that a process has written last, by itself or asked; may be empty."""
    with suppress(OSError):
        text = tail(mark.stacks, _LONGEST).decode(errors="replace")
        return text[max(0, text.rfind(HEADING)) :]
    return ""


def _signal(mark: Mark) -> str:
    """Sends the signal; returns the reason why not, or an empty string."""
    try:
        # From here on the descriptor names one process for good, whatever becomes of the pid.
        descriptor = os.pidfd_open(mark.pid)
    except OSError:
        return "it has ended"
    try:
        if not lives(mark):
            return "it has ended"
        if state(mark.pid) in ("T", "t"):
            return f"it is stopped: kill -CONT {mark.pid} continues it"
        if not (_handles(mark.pid) and _has_open(mark.pid, mark.stacks)):
            return "it does not handle the signal that asks for its stacks"
        signal.pidfd_send_signal(descriptor, SIGNAL)
    except OSError as error:
        return f"it cannot be asked: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _handles(pid: int) -> bool:
    """True if a process has a handler for the signal, as the kernel says."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def _has_open(pid: int, path: Path) -> bool:
    """True if a process has a file open: what it handles the signal for is then this run's."""
    wanted = os.stat(path)
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            found = descriptor.stat()
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False


def _written(mark: Mark, after: int, until_s: float) -> str:
    """Returns what a process has appended to its stacks, once nothing more comes."""
    seen, since_s = after, time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if (now := size(mark.stacks)) != seen:
            seen, since_s = now, now_s
        elif seen > after and now_s - since_s > _SETTLED_S:
            break
        time.sleep(_POLL_S)
    if seen == after:
        return ""
    with suppress(OSError):
        return tail(mark.stacks, _LONGEST, after).decode(errors="replace")
    return ""
