"""Where a user's commands find the token files of his own servers on this machine, by address.

``rlax serve --controller HOST:PORT`` and printed clients need no file to be named on the machine on
which the server runs, as long as the same user runs both.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.secret import Secret, read_secret

log = logging.getLogger("rlax.rpc")


def token_path(address: str) -> Path:
    """The file of the server at this address (host:port), whether or not there is one."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "rlax" / "tokens" / f"{address.replace('localhost', '127.0.0.1')}.json"


@contextmanager
def on_ring(address: str, secret: Secret) -> Iterator[Path]:
    """Keeps a token file for the server at this address; gives its path.

    A home directory that cannot be written is no error: then the file has to be named.
    """
    path = token_path(address)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret.write(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
    try:
        yield path
    finally:
        # Unless another server has taken over the address meanwhile, and written its own.
        with suppress(OSError, ConfigError):
            if read_secret(path, "") == secret:
                path.unlink()
