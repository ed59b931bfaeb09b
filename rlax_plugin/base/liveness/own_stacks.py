"""The stacks of this process's threads: taken in Python, and written when others request them.

``faulthandler`` would need no thread and no lock of the interpreter. But it reads the frames of
threads while these run: a process that its timer or a signal made it look at crashed now and then,
one in ten of those that had been stopped for longer than the timer's limit.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

HEADING = "=== "
"""The beginning of the line above stacks that a process writes by itself."""

_TICK_S = 1.0
_MOST_BYTES = 4 << 20  # of a file of stacks: one that stands still for days must not fill a disk
_MOST_FRAMES = 100  # of a thread


def write_stacks(why: str, file: int, *, empties: bool = True) -> None:
    """Appends the stacks of all threads but this one, as far as the disk takes them.

    Args:
      why: for their heading.
      file: descriptor.
      empties: the file is emptied first if it has become long.
    """
    said = f"\n{HEADING}{why}\n{_stacks()}".encode(errors="replace")
    with suppress(OSError):
        if empties and os.fstat(file).st_size > _MOST_BYTES:
            os.ftruncate(file, 0)
        while said:
            said = said[os.write(file, said) :]


def _stacks() -> str:
    """Returns the stacks in the form in which ``faulthandler`` writes them."""
    lines = []
    for number, frame in sys._current_frames().items():
        if number == threading.get_ident():
            continue
        lines.append(f"Thread {number:#018x} (most recent call first):")
        for inner, line in itertools.islice(traceback.walk_stack(frame), _MOST_FRAMES):
            code = inner.f_code
            lines.append(f'  File "{code.co_filename}", line {line} in {code.co_name}')
        lines.append("")
    return "\n".join(lines)


class Answering:
    """A thread that looks for a request once a second and then writes the stacks.

    It takes no lock of other code, so that it answers also while all other threads wait for locks.

    Args:
      request: file by which another process requests them; it is removed.
      file: descriptor of the file that receives them.
    """

    def __init__(self, request: Path, file: int):
        self._request, self._file = request, file
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rlax-stacks", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ends the thread; waits for it for a moment."""
        self._ended.set()
        self._thread.join(_TICK_S)

    def _run(self) -> None:
        while not self._ended.wait(_TICK_S):
            with suppress(OSError):
                self._request.unlink()
                write_stacks("requested", self._file)
