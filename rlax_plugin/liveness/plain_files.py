"""Reads files that other processes of a run write: ordinary ones only, and never more than asked.

A reward process may put a link, a pipe or a device in the place of a file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def size(path: Path) -> int:
    """Returns the size of an ordinary file in bytes; 0 if it is none, or does not exist."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def tail(path: Path, most: int, after: int = 0) -> bytes:
    """Returns the end of a file.

    Args:
      most: number of bytes at most.
      after: offset before which nothing is read.

    Raises:
      OSError: it is no ordinary file, or cannot be read.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except ValueError as error:  # a name with a NUL
        raise OSError(str(error)) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no ordinary file")
        file.seek(max(after, found.st_size - most))
        return file.read(most)
