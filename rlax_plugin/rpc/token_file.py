"""A token in a file: one line that a client must know, readable by its owner alone."""

from __future__ import annotations

import os
import re
import shlex
import stat

from rlax_plugin.errors import ConfigError

_LEAST = 16  # characters
_MOST_BYTES = 4096
_TOKEN = re.compile(rf"[!-~]{{{_LEAST},}}")


def read_token(key: str, path: str | os.PathLike[str]) -> str:
    """Reads a token, as Prometheus reads its ``credentials_file``; no message contains it.

    Args:
      key: that the path is the value of.

    Raises:
      ConfigError: the file cannot be read, belongs to another user, can be read or written by
        others, or holds something else than one line of at least 16 printable ASCII characters.
    """
    text = os.fspath(path)
    try:
        # A FIFO would otherwise be waited for.
        descriptor = os.open(text, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if (reason := _not_private(os.fstat(descriptor), text)) is not None:
                raise ConfigError(key, text, reason)
            data = os.read(descriptor, _MOST_BYTES + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(key, text, f"cannot be read: {error.strerror}") from error
    line = data.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if len(data) > _MOST_BYTES or not _TOKEN.fullmatch(line):
        reason = (
            f"must hold one line of at least {_LEAST} printable ASCII characters without spaces, "
            "for instance from: openssl rand -hex 32"
        )
        raise ConfigError(key, text, reason)
    return line


def _not_private(status: os.stat_result, path: str) -> str | None:
    if not stat.S_ISREG(status.st_mode):
        return "must be a file"
    if status.st_uid not in (0, os.geteuid()):  # root can read every file anyway
        return f"belongs to user {status.st_uid}: must belong to the user of this process"
    if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
        command = shlex.join(("chmod", "600", path))
        return f"has mode {mode:04o}: others must not be able to read it; run {command}"
    return None
