"""The process that runs a run at present, on record in the lock of the run's directory."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import IO, Any

import psutil

from rlax_plugin.liveness.plain_files import tail

LOCK = ".lock"
"""File in the state directory of a run, locked by the process that runs it."""

_MOST_BYTES = 1 << 12  # of a record
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
    document = _recorded_here(state_dir)
    return None if document is None else _process_of(document)


def holder_has_ended(state_dir: Path) -> bool:
    """True if the last process that ran the run was on this machine and has ended."""
    document = _recorded_here(state_dir)
    return document is not None and _process_of(document) is None


def _recorded_here(state_dir: Path) -> dict[str, Any] | None:
    """Returns the record of a process of this machine; None if there is none."""
    try:
        document = json.loads(tail(state_dir / LOCK, _MOST_BYTES))
        return document if document["host"] == socket.gethostname() else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None  # an empty file, as earlier versions and a process that just starts leave it


def _process_of(document: dict[str, Any]) -> psutil.Process | None:
    try:
        process = psutil.Process(document["pid"])
        same = abs(process.create_time() - document["started_s"]) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (ValueError, LookupError, TypeError, OverflowError, psutil.Error):
        return None
