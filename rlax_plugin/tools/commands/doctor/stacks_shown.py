"""Requests the stacks of processes of a run, and shortens them to the threads that matter.

The request is a file, which a thread of the process looks for once a second. Where code holds
Python's interpreter lock, no thread of the process can answer.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from rlax_plugin.base.liveness.marks import STOPPED, Mark, lives, state
from rlax_plugin.base.liveness.own_stacks import HEADING
from rlax_plugin.base.liveness.plain_files import size, tail

_LONGEST = 1 << 18  # bytes that are read of the stacks of one process
_POLL_S = 0.05
_HEAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_SHOWN = ("MainThread", "controller", "event loop")
_IDLE = ("threading.py", "selectors.py", "queue.py", "thread.py", "socket.py", "socketserver.py")
_FRAMES = 6


def ask(processes: Iterable[Mark], within_s: float) -> dict[Mark, str]:
    """Returns the stacks of each process, or a sentence on why there are none.

    Args:
      within_s: seconds in which all of them must have written theirs.
    """
    end_s = time.monotonic() + within_s
    answers: dict[Mark, str] = {}
    sizes: dict[Mark, int] = {}
    for mark in processes:
        try:
            if problem := _ended_or_stopped(mark):
                answers[mark] = problem
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            before = size(mark.stacks)
            os.close(os.open(mark.request, flags, 0o600))
            sizes[mark] = before
        except OSError as error:
            answers[mark] = f"its stacks cannot be requested: {error.strerror}"
    silent = set(sizes)
    while silent and time.monotonic() < end_s:
        time.sleep(_POLL_S)
        silent = {mark for mark in silent if size(mark.stacks) == sizes[mark]}
    time.sleep(_POLL_S)  # the last one may have just begun to write
    for mark in sizes:
        with suppress(OSError):
            mark.request.unlink()
        answers[mark] = _why_silent(mark, within_s) if mark in silent else newest(mark)
    return answers


def newest(mark: Mark) -> str:
    """Returns the stacks that a process has written last, by itself or requested; may be empty."""
    with suppress(OSError):
        text = tail(mark.stacks, _LONGEST).decode(errors="replace")
        return text[max(0, text.rfind(HEADING)) :]
    return ""


def _ended_or_stopped(mark: Mark) -> str:
    with suppress(OSError):
        if lives(mark):
            stopped = state(mark.pid) in STOPPED
            return f"it is stopped: kill -CONT {mark.pid} continues it" if stopped else ""
    return "it has ended"


def _why_silent(mark: Mark, within_s: float) -> str:
    return _ended_or_stopped(mark) or (
        f"it has written no stacks within {within_s:g} s: the machine is overloaded, it waits for "
        "a disk, or its code holds Python's interpreter lock\n"
        f"py-spy dump --pid {mark.pid} shows where it is (pip install py-spy; it may need root)"
    )


def shortened(text: str, names: Mapping[str, str]) -> list[str]:
    """Returns the innermost frames of the main threads, and of all others that do not just wait.

    Args:
      text: as ``faulthandler`` writes it.
      names: names of threads by their number in the text.
    """
    lines: list[str] = []
    for number, frames in threads(text):
        name = names.get(number, "")
        innermost = frames[0].split('"')[1] if frames and '"' in frames[0] else ""
        if name in _SHOWN or not innermost.endswith(_IDLE):
            lines.append(f"{name or number}:")
            lines += [f"  {frame}" for frame in frames[:_FRAMES]]
    return lines or text.strip().splitlines()[: 4 * _FRAMES]


def threads(text: str) -> list[tuple[str, list[str]]]:
    """Returns the number of each thread, and its frames, the innermost first."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            found.append((head[1], []))
        elif found and line.strip().startswith("File "):
            found[-1][1].append(line.strip())
    return found
