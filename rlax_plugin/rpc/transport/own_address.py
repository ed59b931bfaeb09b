"""The address from which this machine reaches another one."""

from __future__ import annotations

import socket

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import host_of, is_loopback


def own_address(server: str) -> str:
    """Returns the host on which a process listens so that a server's machine can call it back.

    Sends nothing: it looks up the route of the system to the server.

    Args:
      server: host:port.

    Returns:
      127.0.0.1 if the server is on this machine, otherwise this machine's address on the route.

    Raises:
      ConfigError: the server's name cannot be resolved, or there is no route to it.
    """
    host, port = host_of(server), server.rpartition(":")[2]
    if is_loopback(host):
        return "127.0.0.1"
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as asking:
            asking.connect(there)
            own = asking.getsockname()[0]
    except OSError as error:
        reason = f"has no route from this machine ({error.strerror or error}): give --host"
        raise ConfigError("--controller", server, reason) from None
    return "127.0.0.1" if own == there[0] or is_loopback(own) else own
