"""Small disks that a test may fill, or make read-only."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def small_disk(at: Path, *options: str) -> Iterator[bool]:
    """A disk of 192 MiB, if this process may mount one; yields whether it is there."""
    at.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(("size=192m", *options)), "tmpfs", str(at)],
            check=False,
        ).returncode
    )
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(at)], check=True)
