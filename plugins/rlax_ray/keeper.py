"""The actor that runs one worker: ``rlax serve`` as a child, which ends with it.

Arguments and results are text and numbers. Ray imports this class by its name on each node, so the
package must be installed there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from rlax_plugin.api import python_command

_PREFIX = "rlax-ray-worker-"  # of a directory, before the process id of its actor
_REAPED_S = 10.0  # for a process that was killed to be gone
_LAST = 4096  # bytes of a log in which its last line is looked for


class Keeper:
    """Keeps the process of one worker; its methods may run beside each other."""

    def __init__(self, log: str) -> None:
        """Takes the path of the worker's log, if its directory is on this machine too."""
        _sweep()
        self._log = Path(log)
        if not self._log.parent.is_dir():
            self._log = Path(tempfile.mkdtemp(prefix="rlax-ray-log-")) / self._log.name
        self._token: Path | None = None  # as long as the child lives
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def place(self) -> str:
        """Returns the id of this node."""
        import ray

        return ray.get_runtime_context().get_node_id()

    def renew(self, token: str) -> None:
        """Replaces the token file, which the worker reads again."""
        with self._lock:
            if self._token is not None:
                _write(self._token, token)

    def serve(self, arguments: list[str], token: str) -> tuple[int, str]:
        """Runs the worker until it ends; returns its exit status and the last line of its log."""
        directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")  # mode 0700
        try:
            _write(path := Path(directory) / "worker-token.json", token)
            with self._log.open("ab") as out, self._lock:
                if self._stopped:
                    return 0, "it was told to end before it began"
                self._token, self._child = path, _started(path, arguments, out)
            status = self._child.wait()  # its end is the worker's own, or that of ``stop``
        finally:
            with self._lock:
                self._token = None
            shutil.rmtree(directory, ignore_errors=True)
        return status, f"{_last_line(self._log)} (see {self._log})"

    def stop(self, grace_s: float) -> None:
        """Ends the worker: by SIGTERM, which drains it, and after ``grace_s`` by SIGKILL."""
        with self._lock:
            self._stopped, child = True, self._child
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(grace_s)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(_REAPED_S)


def _started(token: Path, arguments: Sequence[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    command = python_command("-m", "rlax_plugin", "serve", "--with-parent")
    # The token of the cluster is none of a worker's business.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        [*command, "--token-file", str(token), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        env={**environ, "RLAX_PARENT_PID": str(os.getpid())},
        start_new_session=True,
    )


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def _write(path: Path, token: str) -> None:
    beside = path.with_suffix(".new")
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token)
    beside.replace(path)


def _sweep() -> None:
    """Removes the token files that actors of this user have left here when they were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = directory.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if directory.lstat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(directory)
