"""The operator's own certificate for the run's endpoints: read, checked, and followed.

``rlax.network.tls`` names its files. Clients verify it with the authority's certificate, and check
the name by which they connect. A file that changes is used for new connections; what cannot be
used is left alone, and the log says why. The same words say why a client does not accept the
certificate of a server, which gRPC does not always say.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import ssl
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config.addresses import bare, host_of
from rlax_plugin.config.network import Tls
from rlax_plugin.rpc.security.certificate import Identity
from rlax_plugin.rpc.security.private_files import (
    PrivacyError,
    read_ordinary,
    read_private,
    signature,
)
from rlax_plugin.rpc.security.secret import authority_problem

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger("rlax.rpc")

TLS = "rlax.network.tls"
_WARN_DAYS = 7
_MOST_CHAIN = 8  # certificates of a file
_WITHIN_S = 3.0
# Numbers of OpenSSL, which Python hands out as ``verify_code``.
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME, _OTHER_ADDRESS = 62, 64


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
        authority = authority_of(tls)
        for host in self._hosts:
            if why := _refusal(tls, authority, host):
                reason = f"is not accepted by clients with {TLS}.ca = {one_line(tls.ca)}: {why}"
                raise ConfigError(key, path, reason)
        authorities = _certificates(f"{TLS}.ca", tls.ca, authority)
        # Of several authorities of one name, such as the old one and its successor, one suffices.
        ends = {
            issuer: max(one.not_valid_after_utc for one in authorities if one.subject == issuer)
            for issuer in {one.issuer for one in chain} & {one.subject for one in authorities}
        }
        return identity, min([one.not_valid_after_utc for one in chain] + [*ends.values()])


def _refusal(tls: Tls, authority: str, host: str) -> str | None:
    """Has a TLS client verify the files for a host, in memory; returns why it does not accept."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client = _context("", authority).wrap_bio(back, there, server_hostname=bare(host))
        # Without a passphrase, which OpenSSL would ask for on the terminal.
        server.load_cert_chain(tls.certificate, tls.key, password=lambda: b"")
        served = server.wrap_bio(there, back, server_side=True)
        for side in (client, served, client):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, host, authority)
    except OSError as error:  # such as a key that is too short for this machine's policy
        return one_line(str(error), 200)
    return None


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


async def tls_problem(address: str, certificate: str, authority: str) -> str | None:
    """Connects once, and returns one sentence with what is wrong with a server's certificate.

    Nothing is sent but the handshake.

    Args:
      address: host:port.
      certificate: PEM of the only server that is accepted, unless there is an authority.
      authority: PEM, see ``Secret``.

    Returns:
      None if the certificate is accepted, or the server cannot be reached.
    """
    host, port = host_of(address), address.rpartition(":")[2]
    try:
        context = _context(certificate, authority)
        async with asyncio.timeout(_WITHIN_S):
            connecting = asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
            _, writer = await connecting
            writer.transport.abort()
    except ssl.SSLCertVerificationError as error:
        return _of_certificate(error, host, authority)
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE"):
            return (
                f"the process at {address} does not use TLS, so it is none of this run's: is the "
                "address right?"
            )
        return f"the TLS handshake with {address} failed: {one_line(str(error), 200)}"
    except (OSError, ValueError):  # also TimeoutError: gRPC's own words say enough
        return None
    return None


def _context(certificate: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(authority)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.load_verify_locations(cadata=authority or certificate)
    context.set_alpn_protocols(["h2"])
    return context


def _of_certificate(error: ssl.SSLCertVerificationError, host: str, authority: str) -> str:
    if error.verify_code == _EXPIRED:
        return (
            f"the certificate of {host}, or of an authority that has signed it, has expired: renew "
            "it on that machine (rlax certs make DIR), or set the clock of this one"
        )
    if error.verify_code == _NOT_YET:
        return f"the certificate of {host} is not valid yet: one of the two clocks is wrong"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"the certificate is not for {host}: connect by a name that it has, or make one for "
            f"this name (rlax certs make DIR --name {host})"
        )
    if authority:
        return (
            f"the certificate of {host} is not signed by the expected authority: give the run's "
            "own ca.pem (--ca), or a newer token file"
        )
    return (
        "the process that listens there has another certificate than the expected one: it does not "
        "belong to the run, or the run has new secrets (copy its worker-token.json again), or it "
        "has certificates of an authority (--ca)"
    )
