"""``rlax`` as a process of its own: beside a test, or waited for."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlax_plugin.base.files.faults import VARIABLE


def python_path(*folders: Path | str) -> str:
    """PYTHONPATH for children that import from folders as well as from this tree.

    Without the value of this process, a child would run the checkout that is installed.
    """
    return os.pathsep.join(filter(None, (*map(str, folders), os.environ.get("PYTHONPATH"))))


@contextmanager
def process(log: Path, *arguments: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``rlax`` with its output in ``log``; killed at the end if it still lives."""
    with log.open("w") as out:
        command = [sys.executable, "-m", "rlax_plugin", *arguments]
        started = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=out)
    try:
        yield started
    finally:
        started.kill()
        started.wait(60)


def finished(
    *arguments: str, cwd: Path, kill_at: str = "", timeout_s: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """``rlax``, which has ended.

    Args:
      kill_at: the fault point at which it kills itself.
      environment: further variables of its environment.
    """
    return subprocess.run(
        [sys.executable, "-m", "rlax_plugin", *arguments],
        cwd=cwd,
        env=os.environ | environment | ({VARIABLE: kill_at} if kill_at else {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
