"""Recognizes that a disk or the machine failed, and not a config, whichever library said so."""

from __future__ import annotations

import errno
import os
import re
import sqlite3

from rlax_plugin.base.text.harmless import one_line

_FULL = (errno.ENOSPC, errno.EDQUOT)
# The same command may succeed later: the disk is full, read-only or away, or memory, processes or
# descriptors are used up.
_PASSING = frozenset(
    (
        *(*_FULL, errno.EROFS, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV),
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE),
    )
)
# As Python and TensorStore quote the system; other words could be those of a model or a program.
_QUOTED = re.compile(rf"\[(Errno|OS error) ({errno.ENOSPC}|{errno.EDQUOT})\b")
# A RuntimeError of Python and an ImportError of glibc.
_LIMITED = re.compile(r"^can't start new thread$|: failed to map segment from shared object")
_MOST_CAUSES, _LONGEST = 20, 300  # errors behind an error; characters


def exhausted(error: BaseException) -> str:
    """Returns a sentence for an error of a full disk, or of a limit on threads or memory, or "".

    Args:
      error: counts if it, or a cause that it names (``raise ... from``), is such an error. A group
        counts if all of its members do.
    """
    if (full := _found(error)) is None:
        return ""
    what, remedy = "a disk is full", "free some space"
    if _LIMITED.search(str(full)):
        what = "this process may have no further thread or no more memory"
        remedy = "raise the limits of processes and of memory (ulimit -u, ulimit -v, a container's)"
    elif isinstance(full, OSError) and _lacks_inodes(full):
        what, remedy = "a disk has space, but no inodes for further files", "remove some files"
    return (
        f"{what} ({one_line(str(full) or type(full).__name__, _LONGEST)}): {remedy}, then repeat "
        "the command; rlax train continues a run where it ended"
    )


def may_pass(error: BaseException) -> bool:
    """True if an operation of the system caused an error that a repeated command may not meet."""
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None:
            return False
        if (isinstance(one, OSError) and one.errno in _PASSING) or _LIMITED.search(str(one)):
            return True
        one = one.__cause__ or one.__context__
    return False


def _lacks_inodes(full: OSError) -> bool:
    """True if the file system of the file that could not be made has free bytes, but no inodes."""
    try:
        place = os.statvfs(os.path.dirname(os.path.abspath(os.fsdecode(full.filename))))
    except (OSError, TypeError):  # the error names no file
        return False
    return place.f_files > 0 and place.f_favail == 0 and place.f_bavail > 0


def _found(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        found = [_found(one) for one in error.exceptions]
        return found[0] if None not in found else None
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None:
            return None
        full = isinstance(one, OSError) and one.errno in _FULL
        full = full or getattr(one, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if full or _LIMITED.search(str(one)) or _QUOTED.search(str(one)):
            return one
        one = one.__cause__
    return None
