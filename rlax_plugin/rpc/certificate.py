"""Key and certificate of a process that listens, by which clients recognise the right process.

No authority signs the certificates. A client gets the certificate in a way that others cannot
write to (a file, or a call that is already secured) and accepts no other. A process that takes
over the port of a dead one therefore learns nothing, and clients do not trust it.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field

from rlax_plugin.text.harmless import one_line

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
    # Imported here: 50 ms that a process which only connects does not need.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Identity(private.decode(), certificate.public_bytes(pem).decode())
