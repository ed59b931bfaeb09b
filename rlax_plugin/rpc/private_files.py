"""Files that only their user can read: JSON documents, written whole and distrusted when read."""

from __future__ import annotations

import json
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlax_plugin.text.harmless import one_line

_LONGEST = 1 << 16  # bytes


class PrivacyError(Exception):
    """A file that was to be private is not, or is damaged; the text says why."""


def read_private(path: Path) -> Any:
    """Reads a document that nobody else can have read or written.

    Raises:
      PrivacyError: the file is another user's, others may read or write it, or it is no JSON.
      OSError: it cannot be opened; FileNotFoundError: there is none.
    """
    # Neither a link that another user has put there is followed, nor a pipe waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PrivacyError("is no ordinary file")
        if status.st_uid != os.geteuid():
            raise PrivacyError(f"belongs to another user (uid {status.st_uid})")
        if others := stat.S_IMODE(status.st_mode) & 0o077:
            raise PrivacyError(
                f"is open to other users (they have mode {others:02o}), who may know what is in it"
            )
        data = os.read(descriptor, _LONGEST + 1)
    finally:
        os.close(descriptor)
    try:
        if len(data) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} bytes")
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PrivacyError(f"is damaged: {one_line(str(error), 200)}") from None


def write_private(path: Path, document: Any, *, replace: bool = True) -> None:
    """Writes a document with mode 0600; a reader sees the old file, the new one, never a part.

    Args:
      replace: False: a file that is there already stays.

    Raises:
      FileExistsError: one is there, and is not to be replaced.
      OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=1)
        if replace:
            os.replace(beside, path)
        else:
            os.link(beside, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)
