"""The token with which the other hosts of a trainer join host 0, in a file of the run's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.run_secrets import RunSecrets
from rlax_plugin.rpc.secret import Secret, new_token, read_secret

_FILE = "host-token.json"


def host_token_file(state_dir: Path) -> Path:
    """The file to hand to the other hosts: their token, and the certificate of host 0."""
    return state_dir / _FILE


def host_secret(state_dir: Path, secrets: RunSecrets) -> Secret:
    """Returns the secret of the other hosts; it is made if the run has none that can be used.

    It stays the same when the run is continued, so that the file need not be copied again. It is
    replaced if others may have read it, or if the run has a new certificate.

    Raises:
      ConfigError: the file cannot be written.
    """
    path = host_token_file(state_dir)
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
