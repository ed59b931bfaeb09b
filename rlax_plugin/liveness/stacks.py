"""Asks processes of a run for the stacks of their threads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rlax_plugin.liveness.marks import SIGNAL, Mark, lives, state
from rlax_plugin.liveness.plain_files import size, tail

_LONGEST = 1 << 18  # bytes that are read of the stacks of one process
_POLL_S = 0.05
HEADING = "=== "
"""The beginning of the line above stacks that a watchdog writes."""
_SETTLED_S = 0.2  # without another byte: a signal's handler writes line by line
_ANSWERS = 2 / 3  # share of the time within which a watchdog must answer
_LOOKS_PER_S = 25.0  # a thread that waits for the interpreter's lock looks at it 200 times a second
_NO_ANSWER = (
    "it has written no stacks within {:g} s: it is stuck in the kernel, as with a disk that does "
    "not answer, or the machine is overloaded"
)


def ask(processes: Iterable[Mark], within_s: float) -> dict[Mark, str]:
    """Returns the stacks of each process, or a sentence on why there are none.

    The request is a file, which the watchdog of the process looks for once a second. Only if the
    watchdog waits for Python's interpreter lock all that time, the process is also sent a signal,
    whose handler needs no Python. The handler reads the frames of all threads, and if some run at
    that moment, the process may crash.

    Args:
      within_s: seconds in which all of them must have written theirs.
    """
    began_s = time.monotonic()
    said = {mark: _request(mark) for mark in processes}
    asked = {mark: size(mark.stacks) for mark, why in said.items() if not why}
    looks = {mark: _looks(mark) for mark in asked}
    said |= _written(asked, began_s + within_s * _ANSWERS)
    least = _LOOKS_PER_S * (time.monotonic() - began_s)
    signalled = dict[Mark, int]()
    for mark in [mark for mark in asked if not said[mark]]:
        with suppress(OSError):
            mark.request.unlink()
        if _looks(mark) - looks[mark] > least:
            said[mark] = _signal(mark)
            signalled[mark] = asked[mark]
    waiting = {mark: after for mark, after in signalled.items() if not said[mark]}
    said |= _written(waiting, began_s + within_s)
    return {mark: text or _NO_ANSWER.format(within_s) for mark, text in said.items()}


def newest(mark: Mark) -> str:
    """Returns the stacks that a process has written last, by itself or asked; may be empty."""
    with suppress(OSError):
        text = tail(mark.stacks, _LONGEST).decode(errors="replace")
        return text[max(0, text.rfind(HEADING)) :]
    return ""


def _request(mark: Mark) -> str:
    """Leaves the file that asks; returns the reason why not, or an empty string."""
    if not lives(mark):
        return "it has ended"
    try:
        if state(mark.pid) in ("T", "t"):
            return f"it is stopped: kill -CONT {mark.pid} continues it"
        if not _has_open(mark.pid, mark.stacks):
            return "it does not write its stacks to the file of this run"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(mark.request, flags, 0o600))
    except OSError as error:
        return f"it cannot be asked: {error.strerror}"
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
        if not (_handles(mark.pid) and _has_open(mark.pid, mark.stacks)):
            return "it does not handle the signal that asks for its stacks"
        signal.pidfd_send_signal(descriptor, SIGNAL)
    except OSError as error:
        return f"it cannot be asked: {error.strerror}"
    finally:
        os.close(descriptor)
    return ""


def _looks(mark: Mark) -> int:
    """Returns how often a watchdog's thread has waited for something since it began; 0: unknown."""
    with suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{mark.pid}/task/{mark.watchdog}/status").read_text()
        return int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return 0


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


def _written(asked: Mapping[Mark, int], until_s: float) -> dict[Mark, str]:
    """Returns what each process appends to its stacks after an offset, once nothing more comes."""
    return {mark: _appended(mark, after, until_s) for mark, after in asked.items()}


def _appended(mark: Mark, after: int, until_s: float) -> str:
    """Returns what a process has appended to its stacks, once nothing more comes."""
    seen, since_s = after, time.monotonic()
    while (now_s := time.monotonic()) < until_s:
        if (now := size(mark.stacks)) != seen:
            after = min(after, now)  # a long file is emptied first
            seen, since_s = now, now_s
        elif seen > after and now_s - since_s > _SETTLED_S:
            break
        time.sleep(_POLL_S)
    if seen == after:
        return ""
    with suppress(OSError):
        return tail(mark.stacks, _LONGEST, after).decode(errors="replace")
    return ""
