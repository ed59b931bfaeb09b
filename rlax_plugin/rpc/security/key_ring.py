"""Token files of a user's own servers on this machine, which the user's commands find by address.

On the machine of the server, ``rlax serve --controller HOST:PORT`` and printed clients need no
token file as an argument, as long as the same user runs both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import bracketed, host_of
from rlax_plugin.config.user_directories import state_home
from rlax_plugin.rpc.security.secret import Secret, read_secret

log = logging.getLogger("rlax.rpc")


def token_path(address: str) -> Path:
    """The file for the server at this address (host:port), even if it does not exist.

    Raises:
      ConfigError: this user has no directory for such files.
    """
    host, port = host_of(address), address.rpartition(":")[2]
    host = "127.0.0.1" if host == "localhost" else host
    return state_home("--token-file") / "rlax" / "tokens" / f"{bracketed(host)}:{port}.json"


@contextmanager
def on_ring(address: str, secret: Secret) -> Iterator[Path | None]:
    """Keeps a token file for the server at this address; yields its path.

    A home directory that is missing or cannot be written is not an error: the path is None then,
    and clients must be given another file.
    """
    path = None
    try:
        wanted = token_path(address)
        wanted.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret.write(wanted)
        path = wanted
    except OSError as error:
        log.warning("%s cannot be written: %s", error.filename, error.strerror)
    except ConfigError as error:
        log.warning("there is no token file that is found by itself: %s", error)
    try:
        yield path
    finally:
        # Unless another server has taken over the address meanwhile, and written its own. The
        # token may be a later one.
        with suppress(OSError, ConfigError):
            if path is not None and read_secret(path, "").certificate == secret.certificate:
                path.unlink()
