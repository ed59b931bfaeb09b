"""Requests the stacks of their threads from processes of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlax_plugin.liveness.marks import SIGNAL, Mark, lives, state
from rlax_plugin.liveness.own_stacks import HEADING
from rlax_plugin.liveness.plain_files import size, tail

_LONGEST = 1 << 18  # bytes that are read of the stacks of one process
_POLL_S = 0.05
_SETTLED_S = 0.2  # without another byte: a signal's handler writes line by line
_BEGIN, _END = (
    1 / 3,
    2 / 3,
)  # of the time: within it a process shows whether its interpreter is held
# A thread that waits for the interpreter's lock looks at it 200 times a second.
_LOOKS_PER_S = 100.0


@dataclass(slots=True, eq=False)
class _Question:
    """A process that has been sent a request.

    Attributes:
      after: size of its file of stacks before the request.
      seen, since_s: its last size, and the time of the first look that found it.
      looks, from_s: the waits of its answering thread at a time; None: not counted so far.
      is_decided: True once the signal has been sent, or would have been wrong.
    """

    mark: Mark
    after: int
    seen: int
    since_s: float
    looks: int | None = None
    from_s: float = 0.0
    is_decided: bool = False

    def is_answered(self) -> bool:
        """Looks at the file; True once something has been added, and nothing more comes."""
        now, now_s = size(self.mark.stacks), time.monotonic()
        if now != self.seen:
            if now < self.after:
                self.after = 0  # a long file is emptied before it gets more
            self.seen, self.since_s = now, now_s
        return self.seen > self.after and now_s - self.since_s > _SETTLED_S

    def answer(self) -> str:
        """Returns what was added; empty if nothing was, or if it cannot be read."""
        if self.seen > self.after:
            with suppress(OSError):
                return tail(self.mark.stacks, _LONGEST, self.after).decode(errors="replace")
        return ""

    def count(self) -> None:
        """Begins to count the waits of the thread that answers, which should have woken by now."""
        if self.looks is None:
            self.looks, self.from_s = _looks(self.mark), time.monotonic()

    def signal_if_held(self) -> None:
        """Sends the signal if code holds the interpreter: then no frame changes."""
        if self.is_decided:
            return
        self.is_decided = True
        looks, least = _looks(self.mark), _LOOKS_PER_S * (time.monotonic() - self.from_s)
        if self.looks and looks - self.looks > least:
            try:
                self.mark.request.unlink()
            except OSError:
                return  # the thread has had the interpreter since: its answer is on the way
            _signal(self.mark)


def ask(processes: Iterable[Mark], within_s: float) -> dict[Mark, str]:
    """Returns the stacks of each process, or a sentence on why there are none.

    The request is a file, which a thread of the process looks for once a second. If this thread
    waits for Python's interpreter lock for most of the second third of the time, and has not taken
    the request by the end of it, the process is also sent a signal, whose handler needs no Python.
    In other cases it is not: the handler reads the frames of all threads, and if some run at that
    moment, the process may crash.

    Args:
      within_s: seconds in which all of them must have written theirs.
    """
    began_s = time.monotonic()
    said: dict[Mark, str] = {}
    questions: list[_Question] = []
    try:
        for mark in processes:
            before = size(mark.stacks)
            if why := _request(mark):
                said[mark] = why
            else:
                questions.append(_Question(mark, before, before, began_s))
        waiting = list(questions)
        while waiting and (share := (time.monotonic() - began_s) / within_s) < 1:
            waiting = [one for one in waiting if not one.is_answered()]
            for one in waiting if share > _BEGIN else ():
                one.count()
            for one in waiting if share > _END else ():
                one.signal_if_held()
            time.sleep(_POLL_S)
        for one in waiting:
            one.is_answered()
    finally:
        for one in questions:
            with suppress(OSError):
                one.mark.request.unlink()
    for one in questions:
        said[one.mark] = one.answer() or _why_not(one.mark, within_s)
    return said


def newest(mark: Mark) -> str:
    """Returns the stacks that a process has written last, by itself or requested; may be empty."""
    with suppress(OSError):
        text = tail(mark.stacks, _LONGEST).decode(errors="replace")
        return text[max(0, text.rfind(HEADING)) :]
    return ""


def _request(mark: Mark) -> str:
    """Leaves the file that requests stacks; returns the reason why not, or an empty string."""
    if why := _ended_or_stopped(mark):
        return why
    try:
        if not _has_open(mark.pid, mark.stacks):
            return "it does not write its stacks to the file of this run"
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(mark.request, flags, 0o600))
    except OSError as error:
        return f"its stacks cannot be requested: {error.strerror}"
    return ""


def _ended_or_stopped(mark: Mark) -> str:
    with suppress(OSError):
        if lives(mark):
            stopped = state(mark.pid) in ("T", "t")
            return f"it is stopped: kill -CONT {mark.pid} continues it" if stopped else ""
    return "it has ended"


def _why_not(mark: Mark, within_s: float) -> str:
    if why := _ended_or_stopped(mark):
        return why
    why = "the machine is overloaded, or the process hangs"
    with suppress(OSError):
        if "D" in (state(mark.pid), state(mark.answering or mark.pid)):
            why = "it waits for a disk"
    return f"it has written no stacks within {within_s:g} s: {why}"


def _signal(mark: Mark) -> bool:
    """Sends the signal, to this process only and if it has a handler; returns whether it did."""
    with suppress(OSError):
        # From here on the descriptor names one process for good, whatever becomes of the pid.
        descriptor = os.pidfd_open(mark.pid)
        try:
            if lives(mark) and _handles(mark.pid) and _has_open(mark.pid, mark.stacks):
                signal.pidfd_send_signal(descriptor, SIGNAL)
                return True
        finally:
            os.close(descriptor)
    return False


def _looks(mark: Mark) -> int:
    """Returns how often the answering thread has waited, but for pages; 0: unknown."""
    thread = Path(f"/proc/{mark.pid}/task/{mark.answering}")
    with suppress(OSError, ValueError, IndexError):
        waits = (thread / "status").read_text().split("\nvoluntary_ctxt_switches:")[1].split()[0]
        faults = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()[9]
        return int(waits) - int(faults)
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
