"""The operator's own certificate for the run's endpoints: read, checked, and followed.

``rlax.network.tls`` names its files. Clients verify it with the authority's certificate, and check
the name by which they connect. A file that changes is used for new connections; what cannot be
used is left alone, and the log says why.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlax_plugin.config.addresses import bare
from rlax_plugin.config.network import Tls
from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.authority import names_in
from rlax_plugin.rpc.certificate import Identity
from rlax_plugin.rpc.private_files import (
    PrivacyError,
    read_ordinary,
    read_private,
    signature,
)
from rlax_plugin.rpc.secret import authority_problem
from rlax_plugin.text.harmless import one_line

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger("rlax.rpc")

TLS = "rlax.network.tls"
_WARN_DAYS = 7
_MOST_CHAIN = 8  # certificates of a file


def read_authority(key: str, path: str | os.PathLike[str]) -> str:
    """Reads the certificates of an authority, with which clients verify a server.

    Args:
      key: the setting of the path, for messages.

    Returns:
      PEM.

    Raises:
      ConfigError: the file cannot be read, or does not hold certificates alone.
    """
    text = _text(key, path, private=False)
    if (why := authority_problem(text)) is not None:
        raise ConfigError(key, os.fspath(path), why)
    for certificate in _certificates(key, path, text):
        if not _is_authority(certificate):
            reason = "holds a certificate that is not an authority's: name the file ca.pem"
            raise ConfigError(key, os.fspath(path), reason)
    return text


def authority_of(tls: Tls) -> str:
    """Returns the authority of the run's own endpoints, as PEM; "" if they have none.

    Raises:
      ConfigError: its file cannot be used.
    """
    return read_authority(f"{TLS}.ca", tls.ca) if tls.ca else ""


def check_shown_by_clients(tls: Tls) -> None:
    """Checks that hosts of a trainer can show the certificate to their coordinator, as clients.

    Raises:
      ConfigError: it is for servers only, or cannot be read.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key, path = f"{TLS}.certificate", tls.certificate
    certificate = _certificates(key, path, _text(key, path, private=False))[0]
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return
    if ExtendedKeyUsageOID.CLIENT_AUTH not in purposes:
        reason = (
            "is for servers only, but each host shows it to the coordinator as a client: renew it "
            "with rlax certs make DIR"
        )
        raise ConfigError(key, path, reason)


def served_identity(tls: Tls, own: Identity, host: str) -> Identity | OperatorIdentity:
    """Returns the identity that a run's endpoint serves: the operator's, or its own.

    Args:
      own: the self-made one of the run.
      host: by which clients connect.

    Raises:
      ConfigError: see ``OperatorIdentity``.
    """
    return OperatorIdentity(tls, [host]) if tls.given else own


class OperatorIdentity:
    """Key and certificate of ``rlax.network.tls``, as their files are now.

    Args:
      hosts: names and addresses by which clients connect; the certificate must be for each.

    Raises:
      ConfigError: the files cannot be used: the mode of the key, a key of another certificate, an
        authority that did not sign it, a certificate that is not valid now or lacks a name.
    """

    def __init__(self, tls: Tls, hosts: Sequence[str]):
        self._tls, self._hosts = tls, tuple(hosts)
        self._lock = threading.Lock()  # gRPC asks on threads of its own
        self._signature = self._signs()
        self._identity, self._until = self._read()
        self._rejected: tuple[object, str] = (None, "")

    def newest(self) -> Identity:
        """Returns the newest usable key and certificate; reads the files if they have changed.

        If the new files cannot be used, the log says why, and the earlier ones are returned.
        """
        with self._lock:
            found = self._signs()
            if found not in (self._signature, self._rejected[0]):
                self._reread(found)
            return self._identity

    def _reread(self, found: object) -> None:
        try:
            identity, until = self._read()
        except ConfigError as error:
            if str(error) != self._rejected[1]:
                log.error("the certificate before stays in use: %s", error)
            # A key and a certificate are two files: half of a change is not the end of it.
            self._rejected = found, str(error)
            return
        self._signature, self._rejected = found, (None, "")
        self._identity, self._until = identity, until
        log.warning("%s has changed: it is used from now on, until %s", TLS, f"{until:%Y-%m-%d}")

    def warning(self) -> str | None:
        """Returns a line if the certificate ends within a week, or has ended; None otherwise."""
        self.newest()
        with self._lock:
            until = self._until
        left = until - datetime.datetime.now(datetime.UTC)
        if left > datetime.timedelta(days=_WARN_DAYS):
            return None
        path = one_line(self._tls.certificate)
        if left < datetime.timedelta(0):
            return f"{TLS}.certificate {path} has expired at {until:%Y-%m-%d %H:%M} UTC: renew it"
        return (
            f"{TLS}.certificate {path} expires at {until:%Y-%m-%d %H:%M} UTC: renew it; the run "
            "uses the new files without a restart"
        )

    def _signs(self) -> object:
        """Returns a value that changes with the files."""
        return tuple(map(signature, (self._tls.certificate, self._tls.key)))

    def _read(self) -> tuple[Identity, datetime.datetime]:
        tls = self._tls
        key, path = f"{TLS}.certificate", tls.certificate
        text = _text(key, path, private=False)
        chain = _certificates(key, path, text)
        if len(chain) > _MOST_CHAIN:
            raise ConfigError(key, path, f"holds more than {_MOST_CHAIN} certificates")
        identity = Identity(_text(f"{TLS}.key", tls.key, private=True), text)
        if why := identity.problem:
            raise ConfigError(f"{TLS}.key", tls.key, f"cannot be used with {one_line(path)}: {why}")
        _check_time(key, path, chain[0])
        _check_names(key, path, chain[0], self._hosts)
        authorities = _certificates(f"{TLS}.ca", tls.ca, authority_of(tls))
        issuer = _check_signed(key, path, chain, authorities, tls.ca)
        return identity, min(one.not_valid_after_utc for one in (*chain, issuer))


def _text(key: str, path: str | os.PathLike[str], *, private: bool) -> str:
    text = os.fspath(path)
    try:
        data = read_private(Path(text), links=True) if private else read_ordinary(Path(text))
        return data.decode("ascii")
    except PrivacyError as error:
        raise ConfigError(key, text, str(error)) from None
    except OSError as error:
        raise ConfigError(key, text, f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(key, text, "must be a file in PEM, which is text") from None


def _certificates(key: str, path: str | os.PathLike[str], text: str) -> Sequence[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise ConfigError(key, os.fspath(path), "holds no certificate in PEM") from None


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return found.ca


def _check_time(key: str, path: str, certificate: x509.Certificate) -> None:
    now = datetime.datetime.now(datetime.UTC)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        reason = f"has expired at {end:%Y-%m-%d %H:%M} UTC: renew it (rlax certs make DIR)"
        raise ConfigError(key, path, reason)
    if now < begin:
        reason = (
            f"is not valid before {begin:%Y-%m-%d %H:%M} UTC: is the clock of this machine right?"
        )
        raise ConfigError(key, path, reason)


def _check_names(key: str, path: str, certificate: x509.Certificate, hosts: Sequence[str]) -> None:
    names = names_in(certificate)
    if missing := [host for host in hosts if not any(_is_for(name, host) for name in names)]:
        known = one_line(", ".join(names), 300) or "no name"
        reason = (
            f"is not for {missing[0]}, by which workers reach the run "
            f"(rlax.network.advertised_host or host); it is for {known}. Make one with "
            f"rlax certs make DIR --name {missing[0]}"
        )
        raise ConfigError(key, path, reason)


def _is_for(name: str, host: str) -> bool:
    """True if a name of a certificate covers a host; ``*`` stands for one label."""
    try:
        return ipaddress.ip_address(name) == ipaddress.ip_address(bare(host))
    except ValueError:
        pass
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    if name.startswith("*."):
        return host.partition(".")[2] == name[2:] != ""
    return name == host


def _check_signed(
    key: str,
    path: str,
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    ca: str,
) -> x509.Certificate:
    """Returns the authority that has signed the last certificate on the way to it."""
    now = datetime.datetime.now(datetime.UTC)
    current = chain[0]
    for _ in chain:
        issuer = next((one for one in authorities if _issued(current, one)), None)
        if issuer is not None:
            if now > (end := issuer.not_valid_after_utc):
                reason = f"holds an authority that has expired at {end:%Y-%m-%d %H:%M} UTC"
                raise ConfigError(f"{TLS}.ca", ca, reason)
            return issuer
        between = next((one for one in chain[1:] if _issued(current, one)), None)
        if between is None:
            break
        _check_time(key, path, between)
        current = between
    reason = f"is not signed by the authority in {TLS}.ca = {one_line(ca)}"
    raise ConfigError(key, path, reason)


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return _is_authority(issuer)
