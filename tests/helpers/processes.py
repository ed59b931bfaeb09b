"""``rlax`` as a process of its own that is let run beside a test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
