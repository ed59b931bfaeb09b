"""A client's access to one server: a token, and the certificate by which it knows that server.

A secret travels between processes in files that only their user can read, or inside calls that
are already secured: never in arguments or environment variables, which others see or inherit.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.private_files import PrivacyError, read_private_json, write_private_json

_TOKEN = re.compile("[0-9a-f]{64}")
_LONGEST_CERTIFICATE = 1 << 14  # characters; those made here have 500
_CERTIFICATE = re.compile(
    r"-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+\n-----END CERTIFICATE-----\n"
)


def new_token() -> str:
    """256 random bits, as 64 hexadecimal digits."""
    return secrets.token_hex(32)


@dataclass(frozen=True, slots=True)
class Secret:
    """The token to show to one server, and that server's certificate.

    Attributes:
      token: 64 hexadecimal digits.
      certificate: PEM; the client connects to no other server.
    """

    token: str = field(repr=False)
    certificate: str

    @property
    def problem(self) -> str | None:
        """The reason why the values are invalid; None if they are valid."""
        if not _TOKEN.fullmatch(self.token):
            return "its token must have 64 hexadecimal digits"
        long = len(self.certificate) > _LONGEST_CERTIFICATE
        if long or not _CERTIFICATE.fullmatch(self.certificate):
            return "its certificate must be one certificate in PEM"
        return None

    def write(self, path: Path) -> None:
        """Writes a token file that only this user can read.

        Raises:
          OSError: it cannot be written.
        """
        write_private_json(path, asdict(self))


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
    token, certificate = said.get("token"), said.get("certificate")
    if isinstance(token, str) and isinstance(certificate, str):
        found = Secret(token, certificate)
        if found.problem is None:
            return found
    raise ConfigError(key, text, "is no token file; name the file that rlax train printed")
