"""The process that runs a run at present, on record in the lock of the state directory."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import psutil

from rlax_plugin.base.liveness.marks import boot_id
from rlax_plugin.base.liveness.plain_files import tail
from rlax_plugin.base.text.harmless import one_line

LOCK = ".lock"
"""File in the state directory of a run, locked by the process that runs it."""

_MOST_BYTES = 1 << 12  # of a record
_LONGEST = 100  # characters of a host's name
_SAME_S = 5.0  # a system may compute the start of a process a little differently each time


def record_holder(lock: IO[str]) -> None:
    """Writes this process into the lock's file, which it has locked."""
    lock.seek(0)
    lock.truncate()
    lock.write(json.dumps(this_process()) + "\n")
    lock.flush()


def this_process() -> dict[str, Any]:
    """Returns the record of this process."""
    document = {"host": socket.gethostname(), "pid": os.getpid()}
    document["started_s"] = psutil.Process().create_time()
    with suppress(OSError):  # on Linux only
        document["boot"] = boot_id()
    return document


def described(document: Mapping[str, Any]) -> str:
    """Returns a recorded process in words; the record may be malformed."""
    try:
        since = datetime.fromtimestamp(document["started_s"], UTC)
        host, pid = one_line(str(document["host"]), _LONGEST), int(document["pid"])
    except (ValueError, LookupError, TypeError, OverflowError, OSError):
        return "another process"
    return f"process {pid} on {host} (since {since:%Y-%m-%d %H:%M:%S} UTC)"


def recorded_holder(state_dir: Path) -> dict[str, Any]:
    """Returns the record of the last process that ran the run; {}: there is none."""
    try:
        document = json.loads(tail(state_dir / LOCK, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}  # an empty file, as a process that just starts leaves it
    return document if isinstance(document, dict) else {}


def holder(state_dir: Path) -> psutil.Process | None:
    """Returns the process that runs the run; None if it has ended, or is on another machine."""
    document = _recorded_here(state_dir)
    return None if document is None else _process_of(document)


def holder_has_ended(state_dir: Path) -> bool:
    """True if the last process that ran the run was on this machine and has ended."""
    document = _recorded_here(state_dir)
    return document is not None and _process_of(document) is None


def has_ended_here(document: Mapping[str, Any]) -> bool:
    """True if a recorded process was one of this machine since its boot, and has ended."""
    with suppress(OSError):
        return document.get("boot") == boot_id() and _process_of(document) is None
    return False


def living_here(document: Mapping[str, Any]) -> psutil.Process | None:
    """Returns a recorded process; None if it has ended, or is not one of this machine."""
    with suppress(OSError):
        return _process_of(document) if document.get("boot") == boot_id() else None
    return None


def _recorded_here(state_dir: Path) -> dict[str, Any] | None:
    """Returns the record of a process of this machine; None if there is none."""
    document = recorded_holder(state_dir)
    return document if document.get("host") == socket.gethostname() else None


def _process_of(document: Mapping[str, Any]) -> psutil.Process | None:
    try:
        process = psutil.Process(document["pid"])
        same = abs(process.create_time() - document["started_s"]) < _SAME_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (ValueError, LookupError, TypeError, OverflowError, psutil.Error):
        return None
