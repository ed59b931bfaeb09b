"""Ends a process and everything it has started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

import psutil


def kill_tree(pid: int, *, gone: bool = False) -> None:
    """Kills a process that leads a process group, its group, and the descendants outside of it.

    Descendants that have left the group (with a session of their own) are found as long as the
    processes between them and ``pid`` live.

    Args:
      pid: the process.
      gone: True if the process itself has ended and only its group is left.
    """
    others: list[psutil.Process] = []
    if not gone:
        with suppress(psutil.Error):
            others = psutil.Process(pid).children(recursive=True)
    for other in others:
        with suppress(psutil.Error, OSError):
            if os.getpgid(other.pid) != pid:  # this very process may be in the group
                other.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
