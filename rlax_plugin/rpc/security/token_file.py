"""A token that the user has chosen: one line in a file that only its owner can read."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc.security.private_files import PrivacyError, read_private

_LEAST, _MOST = 16, 4096  # characters
_TOKEN = re.compile(rf"[!-~]{{{_LEAST},{_MOST}}}")


def read_token(key: str, path: str | os.PathLike[str]) -> str:
    """Reads a token, as Prometheus reads its ``credentials_file``; no message contains it.

    Args:
      key: config key of the path.

    Raises:
      ConfigError: the file cannot be read, belongs to another user, can be read or written by
        others, or does not hold exactly one line of at least 16 printable ASCII characters.
    """
    text = os.fspath(path)
    try:
        data = read_private(Path(text), links=True)
    except PrivacyError as error:
        raise ConfigError(key, text, str(error)) from None
    except OSError as error:
        raise ConfigError(key, text, f"cannot be read: {error.strerror}") from error
    line = data.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not _TOKEN.fullmatch(line):
        reason = (
            f"must hold one line of at least {_LEAST} printable ASCII characters without spaces, "
            "for instance from: openssl rand -hex 32"
        )
        raise ConfigError(key, text, reason)
    return line
