"""The only module that listens for calls or connects to servers.

Every port identifies itself by a certificate and accepts callers that show a token
(``callers.py``). The one exception is ``rlax serve RUN --open``: a port with neither, for clients
that support neither.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from rlax_plugin.errors import ConfigError
from rlax_plugin.rpc.callers import Callers, Guard, with_token
from rlax_plugin.rpc.certificate import NAME, Identity
from rlax_plugin.rpc.channels import CHANNEL_OPTIONS, SERVER_OPTIONS, most_connections
from rlax_plugin.rpc.secret import Secret, read_secret

_TARGET = (("grpc.ssl_target_name_override", NAME),)


@dataclass(frozen=True, slots=True)
class Door:
    """The access settings of a server.

    Attributes:
      callers: the accepted tokens.
      identity: the server's key and certificate; None: it has neither, and calls are not
        encrypted.
      front_ends: services that an engine adds, for clients.
    """

    callers: Callers
    identity: Identity | None
    front_ends: Sequence[str] = ()


def listen(
    host: str,
    port: int,
    door: Door,
    key: str,
    interceptors: Iterable[grpc.aio.ServerInterceptor] = (),
) -> tuple[grpc.aio.Server, str]:
    """Binds a port for a gRPC server, whose services are added before it starts.

    Args:
      port: 0 takes any free one.
      key: config key that sets the port, for the error's message.
      interceptors: see only calls that were let in.

    Returns:
      The server, and host:port.

    Raises:
      ConfigError: the port is taken.
    """
    guard = Guard(door.callers, door.front_ends)
    limit = ("grpc.max_allowed_incoming_connections", most_connections())
    server = grpc.aio.server(options=(*SERVER_OPTIONS, limit), interceptors=(guard, *interceptors))
    wanted = f"{host}:{port}"
    try:
        if (identity := door.identity) is None:
            bound = server.add_insecure_port(wanted)
        else:
            pair = identity.key.encode(), identity.certificate.encode()
            bound = server.add_secure_port(wanted, grpc.ssl_server_credentials([pair]))
    except RuntimeError as error:
        reason = f"cannot be used on {host}: {error}; 0 means any free port"
        raise ConfigError(key, port, reason) from error
    return server, f"{host}:{bound}"


class Connection:
    """A channel to one server, whose calls show a token; generated stubs accept it.

    It belongs to the event loop on which it is used first.
    """

    def __init__(self, channel: grpc.aio.Channel, token: str):
        self._channel = channel
        self._metadata = with_token(token)

    def showing(self, token: str) -> Connection:
        """The same channel, with calls that show another token."""
        return Connection(self._channel, token)

    def _bound(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return functools.partial(make(*args, **kwargs), metadata=self._metadata)

    def unary_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._bound(self._channel.unary_unary, *args, **kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._bound(self._channel.unary_stream, *args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._bound(self._channel.stream_unary, *args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return self._bound(self._channel.stream_stream, *args, **kwargs)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Ends the connection; open calls have ``grace`` seconds to end by themselves."""
        await self._channel.close(grace)


def connect(address: str, secret: Secret) -> Connection:
    """Prepares a connection to a server, which opens with the first call.

    If another process has taken its port, calls fail as UNAVAILABLE and send no data there.

    Args:
      address: host:port.
    """
    credentials = grpc.ssl_channel_credentials(secret.certificate.encode())
    options = (*CHANNEL_OPTIONS, *_TARGET)
    # Without the scheme gRPC takes unix:80 for a socket in the file system, xds:80 for a service.
    channel = grpc.aio.secure_channel(f"dns:///{address}", credentials, options)
    return Connection(channel, secret.token)


def client_channel(address: str, token_file: str | os.PathLike[str] | None = None) -> grpc.Channel:
    """A channel to ``rlax serve RUN`` for scripts, for the stubs of any service.

    Args:
      address: host:port.
      token_file: the server's token file; None: it was started with ``--open``.

    Raises:
      ConfigError: the file is missing, or is no token file.
    """
    if token_file is None:
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    secret = read_secret(token_file, "token_file")
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(secret.certificate.encode()),
        grpc.access_token_call_credentials(secret.token),
    )
    return grpc.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, *_TARGET))
