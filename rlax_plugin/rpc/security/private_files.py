"""Files of keys, tokens and certificates: checked when read, written atomically."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlax_plugin.base.text.harmless import one_line

_LONGEST = 1 << 16  # bytes


class PrivacyError(Exception):
    """A file that should be private is not, or is damaged; the text gives the reason."""


def read_private(path: Path, *, links: bool = False) -> bytes:
    """Reads a file that no other user could have read or written.

    Args:
      links: True to accept a link to such a file, for instance if the user has named it.

    Raises:
      PrivacyError: the file is another user's, others may read or write it, or it is too long.
      OSError: it cannot be opened; FileNotFoundError: it does not exist.
    """
    return _read(path, links=links, private=True)


def read_ordinary(path: Path) -> bytes:
    """Reads a file that others may know, such as a certificate, or a link to one.

    Raises:
      PrivacyError: it is no ordinary file, others may write it, or it is too long.
      OSError: it cannot be opened.
    """
    return _read(path, links=True, private=False)


def _read(path: Path, *, links: bool, private: bool) -> bytes:
    # A pipe is not waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISREG(status.st_mode):
            raise PrivacyError("is no ordinary file")
        if private and status.st_uid not in (0, os.geteuid()):  # root can read every file anyway
            raise PrivacyError(f"belongs to user {status.st_uid}, not to that of this process")
        if private and mode & 0o077:
            command = shlex.join(("chmod", "600", os.fspath(path)))
            raise PrivacyError(
                f"has mode {mode:04o}, so others may know what is in it: run {command}"
            )
        if mode & 0o002:
            command = shlex.join(("chmod", "o-w", os.fspath(path)))
            raise PrivacyError(f"has mode {mode:04o}, so every user may write it: run {command}")
        data = os.read(descriptor, _LONGEST + 1)
    finally:
        os.close(descriptor)
    if len(data) > _LONGEST:
        raise PrivacyError(f"is damaged: it has more than {_LONGEST} bytes")
    return data


def signature(path: str | os.PathLike[str]) -> object:
    """Returns a value that changes with a file; None if the file cannot be looked at."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def read_private_json(path: Path, *, links: bool = False) -> Any:
    """Reads a JSON document; see ``read_private``.

    Raises:
      PrivacyError: also if it is not JSON.
    """
    try:
        return json.loads(read_private(path, links=links))
    except (ValueError, RecursionError) as error:
        raise PrivacyError(f"is damaged: {one_line(str(error), 200)}") from None


def write_private_json(path: Path, document: Any, *, replace: bool = True) -> None:
    """Writes a document with mode 0600; a reader sees the whole old or the whole new file.

    Args:
      replace: False to keep a file that exists already.

    Raises:
      FileExistsError: the file exists and must not be replaced.
      OSError: it cannot be written.
    """
    write_whole(path, json.dumps(document, indent=1).encode(), replace=replace)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, replace: bool = True) -> None:
    """Writes a file; a reader sees the whole old or the whole new one.

    Args:
      mode: its permissions, from the first moment on, whatever the umask.
      replace: False to keep a file that exists already.

    Raises:
      FileExistsError: the file exists and must not be replaced.
      OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
        if replace:
            os.replace(beside, path)
        else:
            os.link(beside, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(beside)
