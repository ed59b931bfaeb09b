"""Reads files that other processes of a run write: ordinary ones only, and never more than asked.

A reward process may put a link, a pipe or a device in the place of a file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from rlax_plugin.base.files.run_files import ordinary


def size(path: Path) -> int:
    """Returns the size of an ordinary file in bytes; 0 if it is none, or does not exist."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def is_read_only(directory: Path) -> bool:
    """True if a directory is there, and this process cannot write into it."""
    return directory.is_dir() and not os.access(directory, os.W_OK)


def tail(path: Path, most: int, after: int = 0) -> bytes:
    """Returns the end of a file.

    Args:
      most: number of bytes at most.
      after: offset before which nothing is read.

    Raises:
      OSError: it is no ordinary file, or cannot be read.
    """
    with _opened(path) as file:
        file.seek(max(after, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def whole(path: Path, most: int) -> bytes:
    """Returns a whole file.

    Args:
      most: bytes that it may have.

    Raises:
      OSError: it is no ordinary file, is larger, or cannot be read.
    """
    with _opened(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return data


def _opened(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb", opener=lambda name, flags: ordinary(name, flags | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and no ordinary file", str(path)) from None
        raise
    except ValueError as error:  # a name with a NUL
        raise OSError(str(error)) from None
