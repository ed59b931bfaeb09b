"""Tokens of the run for other roles than workers, each in a file of its own.

The other hosts of a trainer join host 0 with one, and the user's commands ask for the status of the
run with another one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.run_secrets import RunSecrets
from rlax_plugin.rpc.secret import Secret, new_token, read_secret

FileRole = Literal["host", "client"]


def token_file(state_dir: Path, role: FileRole) -> Path:
    """The file to hand to others of a role: their token, and the certificate of the controller."""
    return state_dir / f"{role}-token.json"


def role_secret(state_dir: Path, secrets: RunSecrets, role: FileRole) -> Secret:
    """Returns the secret of a role; it is made if the run has none that can be used.

    It stays the same when the run is continued, so that the file need not be copied again. It is
    replaced if others may have read it, or if the run has a new certificate.

    Raises:
      ConfigError: the file cannot be written.
    """
    path = token_file(state_dir, role)
    token = new_token()
    try:
        found = read_secret(path, "")
        if found.certificate == secrets.identity.certificate:
            token = found.token
    except ConfigError:
        pass  # there is none yet, or none that only this user knows
    made = replace(secrets.of_worker, token=token)
    try:
        made.write(path)
    except OSError as error:
        reason = f"{error.filename or path} cannot be written: {error.strerror}"
        raise ConfigError("rlax.state_dir", str(state_dir), reason) from None
    return made
