"""Asks processes of a run for the stacks of their threads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from rlax_plugin.liveness.marks import SIGNAL, Mark, lives, state

_LONGEST = 1 << 18  # bytes that are read of the stacks of one process
_POLL_S = 0.05
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
        size = _size(mark)
        if why := _signal(mark):
            said[mark] = why
        else:
            sizes[mark] = size
    for mark, size in sizes.items():
        said[mark] = _written(mark, size, until_s) or (
            f"it has written no stacks within {within_s:g} s: it is stuck in the kernel, as with "
            "a disk that does not answer"
        )
    return said


def newest(mark: Mark) -> str:
    """Returns the stacks that a process has written last, by itself or asked; may be empty."""
    with suppress(OSError), Path(mark.stacks).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST))
        text = file.read().decode(errors="replace")
        heads = text.split("\n\n")
        return heads[-1] if size <= _LONGEST else text
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
        if not _handles(mark.pid):
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


def _size(mark: Mark) -> int:
    with suppress(OSError):
        return os.path.getsize(mark.stacks)
    return 0


def _written(mark: Mark, after: int, until_s: float) -> str:
    """Returns what a process has appended to its stacks, once nothing more comes."""
    size, since_s = after, time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if (now := _size(mark)) != size:
            size, since_s = now, now_s
        elif size > after and now_s - since_s > _SETTLED_S:
            break
        time.sleep(_POLL_S)
    if size == after:
        return ""
    with suppress(OSError), Path(mark.stacks).open("rb") as file:
        file.seek(after)
        return file.read(_LONGEST).decode(errors="replace")
    return ""
