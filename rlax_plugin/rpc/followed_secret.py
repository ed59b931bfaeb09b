"""A worker's secret whose token follows its file, so that a rotated token needs no restart."""

from __future__ import annotations

import logging
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.private_files import signature
from rlax_plugin.rpc.secret import Secret, read_secret

log = logging.getLogger("rlax.rpc")


class FollowedSecret:
    """The secret in a token file; each call shows the token that the file has at that time.

    A file that is missing or cannot be used changes nothing; the log says why. The certificate and
    the authority stay those of the first reading, because open connections have them.

    Args:
      path: the token file.
      key: the setting with the path, for messages.
      authority: replaces that of the file; "": the file's.

    Attributes:
      certificate: see ``Access``.
      authority: see ``Access``.

    Raises:
      MissingSecretError: the file does not exist.
      ConfigError: it is no token file.
    """

    def __init__(self, path: Path, key: str, authority: str = ""):
        self._path, self._key = path, key
        self._signature = signature(path)
        self._secret = read_secret(path, key)
        self.certificate = self._secret.certificate
        self.authority = authority or self._secret.authority

    @property
    def token(self) -> str:
        """The token that the file has now."""
        if (found := signature(self._path)) not in (None, self._signature):
            self._signature = found
            self._reread()
        return self._secret.token

    def _reread(self) -> None:
        try:
            found: Secret = read_secret(self._path, self._key)
        except ConfigError as error:
            log.warning("the token before stays in use: %s", error)
            return
        if found.certificate != self.certificate:
            log.warning("%s is of another run now: the token before stays in use", self._path)
        elif found.token != self._secret.token:
            log.info("%s has a new token, which is used from now on", self._path)
            self._secret = found
