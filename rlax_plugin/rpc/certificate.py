"""Key and certificate of a process that listens: whoever connects knows that it is the right one.

Nobody signs them. A client is told the certificate by a way that others cannot write to (a file, a
call that is secured already) and takes no other one, so that a process which takes over the port of
a dead one learns nothing and is believed nothing.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

NAME = "rlax"
"""The host name in every certificate that is made here; clients compare certificates, not names."""

_VALID_DAYS = 3650  # of a run: it may be resumed years later


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and the certificate that belongs to it.

    Attributes:
      key: PEM; never leaves this user's processes.
      certificate: PEM; public.
    """

    key: str = field(repr=False)
    certificate: str


def new_identity() -> Identity:
    """Makes a key (NIST P-256) and a certificate signed with it; takes milliseconds."""
    # Imported here: 50 ms that a process which only connects does not need.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Identity(private.decode(), certificate.public_bytes(pem).decode())
