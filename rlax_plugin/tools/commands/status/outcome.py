"""Says how a run has ended: complete, failed, interrupted or killed."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Literal

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.ending import last_failure
from rlax_plugin.base.liveness.plain_files import is_read_only, tail
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.tools.commands.status.place import read_plain

Outcome = Literal["", "complete", "failed", "interrupted", "killed", "unknown"]
"""The end of a run; empty: it goes on. ``unknown``: it is not complete, and left no reason."""

_LOG_BYTES, _LONGEST = 1 << 16, 600


def outcome_of(files: RunFiles, state_dir: Path, *, killed: bool) -> tuple[Outcome, str]:
    """Returns the outcome of a run whose process has ended, and a sentence that says it.

    Args:
      killed: True if the process has left its mark behind.
    """
    if killed:
        return "killed", "the process of the trainer was killed"
    failure = last_failure(state_dir)
    try:
        complete = _is_complete(files)
    except RlaxError as error:
        return "unknown", f"the process of the trainer has ended, and {error}"
    if failure:
        when = "after" if complete else "before"
        return "failed", f"the run ended {when} its last step: {failure}"
    if complete:
        return "complete", "the process of the trainer has ended: the run is complete"
    if failure is not None:
        return "interrupted", "the run was interrupted before its last step"
    said = "the run ended before its last step, and has not recorded why"
    if is_read_only(state_dir):
        return "unknown", f"{said}: {state_dir} is read-only"
    if logged := _last_error(state_dir / "logs" / "trainer.log"):
        said += f"; the last error in logs/trainer.log is: {logged}"
    return "unknown", said


def _is_complete(files: RunFiles) -> bool:
    """True if ``summary.json`` says that all steps are trained.

    Raises:
      RlaxError: it cannot be read.
    """
    try:
        document = json.loads(read_plain(files, "summary.json"))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        raise RlaxError(f"{files.location('summary.json')} is damaged") from None
    return isinstance(document, dict) and document.get("complete") is True


def _last_error(log: Path) -> str:
    """Returns the last line of a log that reports an error of this project; empty: there is none.

    Libraries report errors from which they recover.
    """
    with suppress(OSError):
        for line in reversed(tail(log, _LOG_BYTES).decode(errors="replace").splitlines()):
            if line.startswith("error: ") or " ERROR rlax." in line:
                return one_line(line, _LONGEST)
    return ""
