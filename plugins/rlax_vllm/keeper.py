"""The parent of vLLM's server: whoever of the worker, it, and the server ends, all end.

``python keeper.py DIRECTORY COMMAND...``: runs the command in its own process group, until that
ends or its standard input does, which is a pipe that the worker holds: also a worker that was
killed has closed it. Then it kills the group and deletes the directory, which has the server's
sockets. Imports nothing of the project.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_END_S = 10.0  # for processes that were killed to be gone


def _ends_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


def _kill_all() -> None:
    """Kills the descendants, those that left the group too: orphans become this one's children."""
    signal.alarm(int(_END_S))
    while children := _children():
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def main() -> None:
    directory, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are the worker's
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Safe: this process has no other thread.
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, preexec_fn=_ends_with_parent, restore_signals=True
    )
    server_end = os.pidfd_open(server.pid)
    select.select([0, server_end], [], [])
    status = server.poll()
    try:
        _kill_all()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    os._exit(0 if status is None else status & 0xFF or 1)


if __name__ == "__main__":
    main()
