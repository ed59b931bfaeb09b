"""The file ``status.json`` in a run's state directory, written every second or so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.plain_files import whole
from rlax_plugin.base.liveness.run_status import RunStatus, read_status

log = logging.getLogger("rlax.controller")

EVERY_S = 1.0
_JOIN_S = 2.0
_NAME = "status.json"
_MOST_BYTES = 16 << 20


class StatusFile:
    """Writes the status of a run, on a thread of its own, within ``with``.

    A disk that fails or hangs leaves an old status behind, and nothing else.

    Args:
      collect: returns the status; called on the thread.
      removed: called on the thread if the directory is not there any more.
    """

    def __init__(
        self,
        state_dir: Path,
        collect: Callable[[], RunStatus],
        removed: Callable[[], object] = lambda: None,
    ):
        # A directory that is removed stays so: who looks for the run would find a part of it.
        self._files, self._collect = RunFiles(state_dir, makes_root=False), collect
        self._removed = removed
        self._ended = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="rlax-status", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self._files.put(_NAME, self._collect().model_dump_json().encode())
                self._failed = False
            except FileNotFoundError:
                if not self._failed:
                    self._removed()
                self._failed = True
            # Whatever is wrong with a status must not end those to come, and is logged.
            except Exception as error:
                if not self._failed:
                    unforeseen = None if isinstance(error, RlaxError) else error
                    log.warning("the status cannot be written: %s", error, exc_info=unforeseen)
                self._failed = True


def last_status(state_dir: Path) -> RunStatus | None:
    """Returns the status that a run has written last; None: it has written none.

    Raises:
      RlaxError: the file cannot be read, or is malformed.
    """
    path = state_dir / _NAME
    try:
        return read_status(whole(path, _MOST_BYTES), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RlaxError(f"{path} cannot be read: {error.strerror}") from None


def written_at(state_dir: Path) -> float:
    """Returns the Unix time of the last status by the clock of this machine's kernel.

    Raises:
      RlaxError: there is no status.
    """
    path = state_dir / _NAME
    try:
        return path.lstat().st_mtime
    except OSError as error:
        raise RlaxError(f"{path} cannot be read: {error.strerror}") from None
