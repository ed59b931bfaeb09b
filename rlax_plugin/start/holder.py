"""The process that runs a run at present, on record in the lock of the run's directory."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import IO

import psutil

LOCK = ".lock"
"""File in the state directory of a run, locked by the process that runs it."""

_SAME_S = 5.0  # a system may compute the start of a process a little differently each time


def record_holder(lock: IO[str]) -> None:
    """Writes this process into the lock's file, which it has locked."""
    started_s = psutil.Process().create_time()
    document = {"host": socket.gethostname(), "pid": os.getpid(), "started_s": started_s}
    lock.seek(0)
    lock.truncate()
    lock.write(json.dumps(document) + "\n")
    lock.flush()


def holder(state_dir: Path) -> psutil.Process | None:
    """Returns the process that runs the run; None if it has ended, or is on another machine."""
    try:
        document = json.loads((state_dir / LOCK).read_text())
        if document["host"] != socket.gethostname():
            return None
        process = psutil.Process(document["pid"])
        same = abs(process.create_time() - document["started_s"]) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (OSError, ValueError, LookupError, TypeError, psutil.Error):
        return None  # an empty file, as earlier versions and a process that just starts leave it
