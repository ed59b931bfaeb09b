"""``rlax certs make``: an authority of the operator's own, and server certificates it signs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.config.addresses import HOST_FORMS, bare, is_host, is_wildcard
from rlax_plugin.rpc.security.certificate import (
    builder,
    certificate_pem,
    common_name,
    key_pem,
    new_key,
    signed,
)
from rlax_plugin.rpc.security.private_files import (
    PrivacyError,
    read_ordinary,
    read_private,
    write_whole,
)

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

CA, CA_KEY, SERVER, SERVER_KEY = "ca.pem", "ca-key.pem", "server.pem", "server-key.pem"
AUTHORITY_DAYS = 3650
_MOST_NAMES = 64
# A clock that is behind must not reject what was made just now.
_EARLIER = datetime.timedelta(hours=1)
_PUBLIC = 0o644


@dataclass(frozen=True, slots=True)
class Made:
    """The result of ``make_certificates``.

    Attributes:
      names: of the server certificate.
      until: the end of its validity.
      new_authority: True if the authority was made as well.
    """

    names: tuple[str, ...]
    until: datetime.datetime
    new_authority: bool


def make_certificates(directory: Path, names: Sequence[str], days: int) -> Made:
    """Makes a server key and certificate, signed by the directory's authority.

    An authority that is missing is made. The server's files are replaced, each at once; a process
    that serves them uses the new ones once both are there.

    Args:
      names: host names and IP addresses of the server; empty: those of its present certificate.
      days: validity of the server certificate.

    Raises:
      ConfigError: a name is no host, the authority cannot be used, or a file cannot be written.
    """
    _check_names(names)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = tuple(names) or _present_names(directory / SERVER)
        if not wanted:
            raise ConfigError("--name", None, "must be given: a name or address of the server")
        authority, new = _authority(directory)
        return _server(directory, authority, wanted, days, new=new)
    except OSError as error:
        reason = f"{error.filename or directory} cannot be used: {error.strerror}"
        raise ConfigError("DIR", str(directory), reason) from None


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not is_host(name) or is_wildcard(name):
            raise ConfigError("--name", name, f"must be {HOST_FORMS}")
    if len(names) > _MOST_NAMES:
        raise ConfigError("--name", None, f"may be given at most {_MOST_NAMES} times")


@dataclass(frozen=True, slots=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def _authority(directory: Path) -> tuple[_Authority, bool]:
    """Reads the authority, or makes one; returns it, and True if it is new."""
    paths = directory / CA, directory / CA_KEY
    there = [path.exists() for path in paths]
    if not any(there):
        return _new_authority(directory), True
    if not all(there):
        missing = next(path for path, found in zip(paths, there, strict=True) if not found)
        reason = (
            f"{missing.name} is missing: restore it, or remove the rest to make a new authority"
        )
        raise ConfigError("DIR", str(directory), reason)
    return _read_authority(directory), False


def _read_authority(directory: Path) -> _Authority:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    path = directory / CA_KEY
    try:
        key = serialization.load_pem_private_key(read_private(path), None)
        path = directory / CA
        certificate = x509.load_pem_x509_certificate(read_ordinary(path))
    except PrivacyError as error:
        raise ConfigError("DIR", str(directory), f"{path.name} {error}") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = f"{path.name} cannot be read: {one_line(str(error), 200)}"
        raise ConfigError("DIR", str(directory), reason) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("DIR", str(directory), f"{CA_KEY} was not made by rlax certs make")
    if key.public_key() != certificate.public_key():
        reason = f"the key in {CA_KEY} does not belong to the certificate in {CA}"
        raise ConfigError("DIR", str(directory), reason)
    return _Authority(key, certificate)


def _new_authority(directory: Path) -> _Authority:
    from cryptography import x509

    key = new_key()
    name = common_name(f"rlax authority {x509.random_serial_number():x}"[:40])
    until = _now() + datetime.timedelta(days=AUTHORITY_DAYS)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        builder(name, name, key, _now() - _EARLIER, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    made = _Authority(key, signed(certificate, key))
    write_whole(directory / CA_KEY, key_pem(key))
    write_whole(directory / CA, certificate_pem(made.certificate), mode=_PUBLIC)
    return made


def _server(
    directory: Path, authority: _Authority, names: tuple[str, ...], days: int, *, new: bool
) -> Made:
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    until = _now() + datetime.timedelta(days=days)
    if until > (end := authority.certificate.not_valid_after_utc):
        reason = f"would end after the authority itself, which is valid until {end:%Y-%m-%d}"
        raise ConfigError("--days", days, reason)
    key = new_key()
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    # The hosts of a trainer also show it as clients of jax.distributed's coordinator.
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
    subject, issuer = common_name(names[0][:64]), authority.certificate.subject
    certificate = (
        builder(subject, issuer, key, _now() - _EARLIER, until)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(issuer_key, critical=False)
    )
    made = signed(certificate, authority.key)
    write_whole(directory / SERVER_KEY, key_pem(key))
    write_whole(directory / SERVER, certificate_pem(made), mode=_PUBLIC)
    return Made(names, made.not_valid_after_utc, new)


def general_name(host: str) -> x509.GeneralName:
    """Returns a host as a certificate names it."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(bare(host)))
    except ValueError:
        return x509.DNSName(host)


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Returns the host names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = found.get_values_for_type(x509.IPAddress)
    return (*found.get_values_for_type(x509.DNSName), *map(str, addresses))


def _present_names(path: Path) -> tuple[str, ...]:
    from cryptography import x509

    try:
        return names_in(x509.load_pem_x509_certificate(read_ordinary(path)))
    except FileNotFoundError:
        return ()
    except (PrivacyError, ValueError) as error:
        reason = f"must be given, as {path.name} cannot be read: {one_line(str(error), 200)}"
        raise ConfigError("--name", None, reason) from None


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
