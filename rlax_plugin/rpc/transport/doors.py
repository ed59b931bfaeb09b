"""The only module that listens for calls or connects to servers.

Every port identifies itself by a certificate and accepts callers that show a token
(``callers.py``). The one exception is ``rlax serve RUN --open``: a port with neither, for clients
that support neither.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.addresses import bracketed, host_of, is_loopback
from rlax_plugin.rpc.security.callers import Callers, Guard, with_token
from rlax_plugin.rpc.security.certificate import NAME, Identity
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity, tls_problem
from rlax_plugin.rpc.security.secret import Access, read_secret
from rlax_plugin.rpc.transport.channels import CHANNEL_OPTIONS, SERVER_OPTIONS, most_connections

_TARGET = (("grpc.ssl_target_name_override", NAME),)
_DIAGNOSE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Door:
    """The access settings of a server.

    Attributes:
      callers: the accepted tokens.
      identity: the server's key and certificate, or those of the operator, which may change; None:
        it has neither, and calls are not encrypted.
      front_ends: services that an engine adds, for clients.
    """

    callers: Callers
    identity: Identity | OperatorIdentity | None
    front_ends: Sequence[str] = ()


def listen(
    host: str,
    port: int,
    door: Door,
    key: str,
    interceptors: Iterable[grpc.aio.ServerInterceptor] = (),
    *,
    advertised: str = "",
) -> tuple[grpc.aio.Server, str]:
    """Binds a port for a gRPC server, whose services are added before it starts.

    Args:
      host: an address of this machine; without an identity, a loopback address.
      port: 0 takes any free one.
      key: config key that sets the port, for the error's message.
      interceptors: see only calls that were let in.
      advertised: host by which others reach it; "" if it is ``host``.

    Returns:
      The server, and host:port with the advertised host.

    Raises:
      ConfigError: the port is taken, the host is not this machine's, or other machines could
        reach a port without encryption.
    """
    if door.identity is None:
        check_open(host)
    guard = Guard(door.callers, door.front_ends)
    limit = ("grpc.max_allowed_incoming_connections", most_connections())
    server = grpc.aio.server(options=(*SERVER_OPTIONS, limit), interceptors=(guard, *interceptors))
    wanted = f"{bracketed(host)}:{port}"
    try:
        if door.identity is None:
            bound = server.add_insecure_port(wanted)
        else:
            bound = server.add_secure_port(wanted, _credentials(door.identity))
    except RuntimeError as error:
        reason = (
            f"cannot be used on {host}: {error}; 0 means any free port, and the host must be an "
            "address of this machine"
        )
        raise ConfigError(key, port, reason) from error
    return server, f"{bracketed(advertised or host)}:{bound}"


def check_open(host: str) -> None:
    """Checks that a port without a certificate can be reached from this machine only.

    Raises:
      ConfigError: other machines could reach it.
    """
    if not is_loopback(host):
        reason = (
            "must be a loopback address for a port without a certificate (--open): other machines "
            "could call it without a token, and calls would not be encrypted"
        )
        raise ConfigError("--host", host, reason)


def _credentials(identity: Identity | OperatorIdentity) -> grpc.ServerCredentials:
    if isinstance(identity, Identity):
        return grpc.ssl_server_credentials([_pair(identity)])

    served = identity.newest()

    def newest() -> Any:
        # For each new connection; None keeps what is in use.
        nonlocal served
        if (found := identity.newest()) is served:
            return None
        served = found
        return grpc.ssl_server_certificate_configuration([_pair(found)])

    first = grpc.ssl_server_certificate_configuration([_pair(served)])
    return grpc.dynamic_ssl_server_credentials(first, newest)


def _pair(identity: Identity) -> tuple[bytes, bytes]:
    return identity.key.encode(), identity.certificate.encode()


class Connection:
    """A channel to one server, whose calls show a token; generated stubs accept it.

    It belongs to the event loop on which it is used first.

    Args:
      token: the token to show, or a function that returns the present one.
      server: address and access, by which failures are explained; None: they are not.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        token: str | Callable[[], str],
        server: tuple[str, Access] | None = None,
    ):
        self._channel, self._server = channel, server
        self._token: Callable[[], str] = (lambda: token) if isinstance(token, str) else token
        self._diagnosed_s = -math.inf

    def showing(self, token: str) -> Connection:
        """The same channel, with calls that show another token."""
        return Connection(self._channel, token, self._server)

    def _bound(self, make: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        method = make(*args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            return method(*args, metadata=with_token(self._token()), **kwargs)

        return call

    async def diagnose(self, error: grpc.RpcError) -> None:
        """Looks for the cause of a failed call in the server's certificate, where gRPC is silent.

        What it finds becomes a note of the error, which ``describe`` prints. It connects once more,
        at most every few seconds, and takes at most a few seconds.
        """
        code = getattr(error, "code", lambda: None)()
        now_s = time.monotonic()
        due = now_s - self._diagnosed_s >= _DIAGNOSE_EVERY_S
        if code is not grpc.StatusCode.UNAVAILABLE or self._server is None or not due:
            return
        self._diagnosed_s = now_s
        address, access = self._server
        if why := await tls_problem(address, access.certificate, access.authority):
            error.add_note(why)

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


def connect(address: str, secret: Access) -> Connection:
    """Prepares a connection to a server, which opens with the first call.

    If another process has taken its port, calls fail as UNAVAILABLE and send no data there.

    Args:
      address: host:port.
    """
    trusted, options = _trusted(address, secret)
    credentials = grpc.ssl_channel_credentials(trusted)
    # Without the scheme gRPC takes unix:80 for a socket in the file system, xds:80 for a service.
    channel = grpc.aio.secure_channel(f"dns:///{address}", credentials, options)
    return Connection(channel, lambda: secret.token, (address, secret))


def _trusted(address: str, access: Access) -> tuple[bytes, Sequence[tuple[str, Any]]]:
    """The certificates that verify a server, and gRPC's options, with the name to check."""
    if access.authority:
        name = (("grpc.ssl_target_name_override", host_of(address)),)
        return access.authority.encode(), (*CHANNEL_OPTIONS, *name)
    return access.certificate.encode(), (*CHANNEL_OPTIONS, *_TARGET)


def client_channel(address: str, token_file: str | os.PathLike[str] | None = None) -> grpc.Channel:
    """A channel to ``rlax serve RUN`` for scripts, for the stubs of any service.

    Args:
      address: host:port.
      token_file: the server's token file; None: it was started with ``--open``.

    Raises:
      ConfigError: the file is missing, or is no token file, or none is given for a server on
        another machine.
    """
    if token_file is None:
        if not is_loopback(host_of(address)):
            reason = (
                f"must be given: calls to {address} would leave this machine without encryption"
            )
            raise ConfigError("token_file", None, reason)
        return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
    secret = read_secret(token_file, "token_file")
    trusted, options = _trusted(address, secret)
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(trusted),
        grpc.access_token_call_credentials(secret.token),
    )
    return grpc.secure_channel(address, credentials, options=options)
