"""Finds out why the certificate of a server is not accepted, which gRPC does not always say."""

from __future__ import annotations

import asyncio
import ssl

from rlax_plugin.config.addresses import host_of
from rlax_plugin.text.harmless import one_line

_WITHIN_S = 3.0

# Numbers of OpenSSL, which Python hands out as ``verify_code``.
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME, _OTHER_ADDRESS = 62, 64


async def tls_problem(address: str, certificate: str, authority: str) -> str | None:
    """Connects once, and returns one sentence with what is wrong with a server's certificate.

    Nothing is sent but the handshake.

    Args:
      address: host:port.
      certificate: PEM of the only server that is accepted, unless there is an authority.
      authority: PEM, see ``Access``.

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
    context.load_verify_locations(cadata=authority or certificate)
    context.set_alpn_protocols(["h2"])
    return context


def _of_certificate(error: ssl.SSLCertVerificationError, host: str, authority: str) -> str:
    if error.verify_code == _EXPIRED:
        return (
            f"the certificate of {host} has expired: renew it on that machine (rlax certs make "
            "DIR), or set the clock of this one"
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
