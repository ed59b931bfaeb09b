"""A client's access to one server: a token, and the certificate by which it knows that server.

A secret travels between processes in files that only their user can read, or inside calls that
are already secured: never in arguments or environment variables, which others see or inherit.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc.security.private_files import (
    PrivacyError,
    read_private_json,
    signature,
    write_private_json,
)

log = logging.getLogger("rlax.rpc")

_TOKEN = re.compile("[0-9a-f]{64}")
_LONGEST_CERTIFICATE = 1 << 14  # characters; those made here have 500
_LONGEST_AUTHORITY = 1 << 15  # of all certificates of an authority
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+\n-----END CERTIFICATE-----\n"
)


def authority_problem(text: str) -> str | None:
    """Returns the reason why a text is not the certificates of an authority; None if it is."""
    if len(text) > _LONGEST_AUTHORITY:
        return f"must hold at most {_LONGEST_AUTHORITY:,} characters: only the run's own authority"
    if "-----BEGIN CERTIFICATE-----" not in text:
        return "must hold a certificate in PEM"
    if "PRIVATE KEY" in text:
        return "holds a private key, which clients must not get: name the file ca.pem"
    return None


def new_token() -> str:
    """256 random bits, as 64 hexadecimal digits."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Secret:
    """The token to show to one server, and that server's certificate.

    Attributes:
      token: 64 hexadecimal digits.
      certificate: PEM; without an authority, the client connects to no other server.
      authority: PEM; if there is one, the client connects to servers whose certificate it
        has signed for their host. "": the run has certificates of its own.
    """

    token: str = field(repr=False)
    certificate: str
    authority: str = ""

    @property
    def problem(self) -> str | None:
        """The reason why the values are invalid; None if they are valid."""
        if not _TOKEN.fullmatch(self.token):
            return "its token must have 64 hexadecimal digits"
        long = len(self.certificate) > _LONGEST_CERTIFICATE
        if long or not _CERTIFICATE.fullmatch(self.certificate):
            return "its certificate must be one certificate in PEM"
        if self.authority and (why := authority_problem(self.authority)) is not None:
            return f"its authority {why}"
        return None

    def write(self, path: Path) -> None:
        """Writes a token file that only this user can read.

        Raises:
          OSError: it cannot be written.
        """
        document = {"token": self.token, "certificate": self.certificate}
        if self.authority:
            document["authority"] = self.authority
        write_private_json(path, document)


class MissingSecretError(ConfigError):
    """The token file does not exist (yet)."""


def read_secret(path: str | os.PathLike[str], key: str) -> Secret:
    """Reads a token file.

    Args:
      key: name of the setting with this path, for messages.

    Raises:
      MissingSecretError: the file does not exist.
      ConfigError: it is not a token file, or others could have read or written it.
    """
    text = os.fspath(path)
    try:
        document = read_private_json(Path(text), links=True)
    except PrivacyError as error:
        raise ConfigError(key, text, f"{error}; name the file that rlax train printed") from None
    except FileNotFoundError:
        reason = "does not exist; name the file that rlax train printed"
        raise MissingSecretError(key, text, reason) from None
    except OSError as error:
        raise ConfigError(key, text, f"cannot be read: {error.strerror}") from None
    said = document if isinstance(document, Mapping) else {}
    values = [said.get("token"), said.get("certificate"), said.get("authority", "")]
    if all(isinstance(value, str) for value in values):
        found = Secret(*map(str, values))
        if found.problem is None:
            return found
    raise ConfigError(key, text, "is no token file; name the file that rlax train printed")


class FollowedSecret:
    """The secret in a token file; each call shows the token that the file has at that time.

    A file that is missing or cannot be used changes nothing; the log says why. The certificate and
    the authority stay those of the first reading, because open connections have them.

    Args:
      path: the token file.
      key: the setting with the path, for messages.
      authority: replaces that of the file; "": the file's.

    Attributes:
      certificate: see ``Secret``.
      authority: see ``Secret``.

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
            found = read_secret(self._path, self._key)
        except ConfigError as error:
            log.warning("the token before stays in use: %s", error)
            return
        if found.certificate != self.certificate:
            log.warning("%s is of another run now: the token before stays in use", self._path)
        elif found.token != self._secret.token:
            log.info("%s has a new token, which is used from now on", self._path)
            self._secret = found


Access = Secret | FollowedSecret
"""A client's access to one server."""
