"""``rlax`` in a process that kills itself at a moment that its own file operations name.

``python killed_commands.py EVENT TEXT NUMBER ARGUMENTS...``: the process is killed just before it
does EVENT, an audit event of Python such as ``os.rename``, for the NUMBER-th time with TEXT in its
paths. NUMBER 0 kills never.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path


def run(
    event: str, text: str, number: int, *arguments: str, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Runs the command until it is killed, or to its end."""
    command = [sys.executable, str(Path(__file__)), event, text, str(number), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250)


def _main(event: str, text: str, number: int, arguments: list[str]) -> None:
    seen = 0

    def look(name: str, values: tuple[object, ...]) -> None:
        nonlocal seen
        if name == event and text in "|".join(str(value) for value in values):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    sys.argv[1:] = arguments
    runpy.run_module("rlax_plugin", run_name="__main__")


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
