"""Key and certificate of a process that listens, by which clients recognise the right process.

No authority signs the certificates. A client gets the certificate in a way that others cannot
write to (a file, or a call that is already secured) and accepts no other. A process that takes
over the port of a dead one therefore learns nothing, and clients do not trust it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlax_plugin.base.text.harmless import one_line

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "rlax"
"""The host name in every certificate that is made here; clients compare certificates, not names."""

# No clock decides who is who: one that was wrong when the certificate was made, or is wrong now,
# must not part the processes of a run. The end is what RFC 5280 has for certificates without one.
_BEGIN = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and the certificate that belongs to it.

    Attributes:
      key: PEM; never leaves this user's processes.
      certificate: PEM; public.
    """

    key: str = field(repr=False)
    certificate: str

    @property
    def problem(self) -> str | None:
        """The reason why no server can use it as its identity; None if one can."""
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization

        try:
            key = serialization.load_pem_private_key(self.key.encode(), None)
            certificate = x509.load_pem_x509_certificate(self.certificate.encode())
            belongs = key.public_key() == certificate.public_key()
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            return f"its key or certificate cannot be read: {one_line(str(error), 200)}"
        if not belongs:
            return "its key is not that of its certificate"
        return None


def new_identity() -> Identity:
    """Makes a key (NIST P-256) and a certificate signed with it; takes milliseconds."""
    from cryptography import x509

    key, name = new_key(), common_name(NAME)
    certificate = (
        builder(name, name, key, _BEGIN, _END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    return Identity(key_pem(key).decode(), certificate_pem(signed(certificate, key)).decode())


# What follows imports late: 50 ms that a process which only connects does not need.


def new_key() -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def common_name(text: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begin: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    """A certificate of a key, to which extensions are added before it is signed."""
    from cryptography import x509

    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def signed(made: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return made.sign(key, hashes.SHA256())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, plain)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
