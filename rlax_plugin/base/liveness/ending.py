"""The file ``ended.json`` in a run's state directory: the error that ended its last process."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.exhausted import exhausted
from rlax_plugin.base.liveness.plain_files import whole
from rlax_plugin.base.text.harmless import one_line

log = logging.getLogger("rlax.controller")

_NAME = "ended.json"
_MOST_BYTES = 1 << 16
_LONGEST = 600  # characters of an error


def record_ending(state_dir: Path, error: BaseException | None) -> None:
    """Writes how this process ends the run, for ``rlax status`` and ``rlax doctor``.

    A disk that rejects it changes nothing else: the error itself is raised and shown anyway.

    Args:
      error: that ends it; None or an interrupt: it is complete, or was interrupted.
    """
    failure = ""
    if error is not None and not isinstance(error, KeyboardInterrupt):
        failure = in_one_line(error)
    try:
        RunFiles(state_dir, makes_root=False).put_json(_NAME, {"failure": failure})
    except (RlaxError, OSError) as problem:
        log.warning("the end of the run cannot be recorded: %s", problem)


def in_one_line(error: BaseException) -> str:
    """Returns the error that ends a process in one line, for other processes."""
    said = str(error)
    if not isinstance(error, RlaxError):
        said = exhausted(error) or f"{type(error).__name__}: {error}".removesuffix(": ")
    return one_line(" ".join(said.split()), _LONGEST)


def forget_ending(state_dir: Path) -> None:
    """Removes the record of an earlier process, when another one takes up the run."""
    with suppress(OSError):
        (state_dir / _NAME).unlink()


def recorded_at(state_dir: Path) -> float:
    """Returns the Unix time at which a process has recorded its end; 0: none has."""
    try:
        return (state_dir / _NAME).lstat().st_mtime
    except OSError:
        return 0.0


def last_failure(state_dir: Path) -> str | None:
    """Returns the error that ended the last process of a run; empty: it ended without one.

    Returns:
      None if there is no record, or a malformed one: the process was killed, its disk was full, or
      its version wrote none.
    """
    try:
        failure = json.loads(whole(state_dir / _NAME, _MOST_BYTES))["failure"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return one_line(failure, _LONGEST) if isinstance(failure, str) else None
