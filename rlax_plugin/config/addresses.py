"""Hosts and addresses: their form, and whether they reach beyond this machine."""

from __future__ import annotations

import ipaddress
import re

_NAME = r"[A-Za-z0-9._-]+"
_BRACKETED = r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]"
_HOST = rf"{_NAME}|{_BRACKETED}"
_LONGEST_HOST = 253  # characters of a DNS name

HOST_FORMS = "a name, an IPv4 address or an IPv6 address, without a port"
"""The accepted hosts, for messages."""


def is_address(text: str) -> bool:
    """True if a text is host:port of one process.

    A host is a name, an IPv4 address, or an IPv6 address in brackets. Anything else is not accepted
    because gRPC treats ``unix:name`` as a socket in the file system, and knows other schemes.
    """
    host, colon, port = text.rpartition(":")
    return bool(re.fullmatch(_HOST, host) and colon and _is_port(port))


def _is_port(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,5}", text)) and 0 < int(text) < 65536


def is_host(text: str) -> bool:
    """True if a text is a name, an IPv4 address, or an IPv6 address with or without brackets."""
    if len(text) > _LONGEST_HOST:
        return False
    if ":" in text or text.startswith("["):
        return _ip(text) is not None and re.fullmatch(_BRACKETED, bracketed(text)) is not None
    return re.fullmatch(_NAME, text) is not None


def bare(host: str) -> str:
    """Returns a host without the brackets of an IPv6 address."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def bracketed(host: str) -> str:
    """Returns a host as it stands before ``:port``: an IPv6 address has brackets there."""
    return f"[{bare(host)}]" if ":" in host else host


def host_of(address: str) -> str:
    """Returns the host of host:port, without brackets."""
    return bare(address.rpartition(":")[0])


def is_loopback(host: str) -> bool:
    """True if only processes of this machine can reach a port on this host.

    Of names, only ``localhost`` counts: a resolver decides what others are.
    """
    found = _ip(host)
    return host == "localhost" if found is None else found.is_loopback


def is_wildcard(host: str) -> bool:
    """True for the hosts that stand for all addresses of the machine; none can connect to them."""
    found = _ip(host)
    return found is not None and found.is_unspecified


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(bare(host))
    except ValueError:
        return None
