"""Recognizes that a disk or the machine failed, and not a config, whichever library said so."""

from __future__ import annotations

import errno
import re
import sqlite3

from rlax_plugin.text.harmless import one_line

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
_MOST_CAUSES, _LONGEST = 20, 300  # errors behind an error; characters


def full_disk(error: BaseException) -> str:
    """Returns a sentence for an error that a full disk has caused; "" for any other.

    Args:
      error: counts if it, or a cause that it names (``raise ... from``), is a full disk. A group
        counts if all of its members do.
    """
    if not (said := _found(error)):
        return ""
    return (
        f"a disk is full ({one_line(said, _LONGEST)}): free some space, then repeat the command; "
        "rlax train continues a run where it ended"
    )


def may_pass(error: BaseException) -> bool:
    """True if an operation of the system caused an error that a repeated command may not meet."""
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None:
            return False
        if isinstance(one, OSError) and one.errno in _PASSING:
            return True
        one = one.__cause__ or one.__context__
    return False


def _found(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        found = [_found(one) for one in error.exceptions]
        return found[0] if all(found) else ""
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None:
            return ""
        full = isinstance(one, OSError) and one.errno in _FULL
        full = full or getattr(one, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if full or _QUOTED.search(str(one)):
            return str(one) or type(one).__name__
        one = one.__cause__
    return ""
