"""Recognizes that a command failed because a disk is full, whichever library said so."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_WORDS = tuple(os.strerror(number) for number in _FULL)  # of libraries that keep no number


def full_disk(error: BaseException) -> str:
    """Returns a sentence for an error that a full disk has caused; "" for any other.

    Args:
      error: with its causes; a group of errors counts with all of its members.
    """
    for one in _with_causes(error, set()):
        said = str(one)
        full = isinstance(one, OSError) and one.errno in _FULL
        full = full or getattr(one, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        if full or any(words in said for words in _WORDS):
            return (
                f"a disk is full ({said}): free some space, then repeat the command; a run goes on "
                "where it ended"
            )
    return ""


def _with_causes(error: BaseException | None, seen: set[int]) -> Iterator[BaseException]:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    yield error
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _with_causes(one, seen)
    yield from _with_causes(error.__cause__ or error.__context__, seen)
