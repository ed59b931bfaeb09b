"""HTTP servers: uvicorn on a thread of its own, with the deadlines and limits that it lacks.

A client that is silent, slow or sends too much delays neither other clients nor the end of the
process: every request and every answer has a deadline, and if there are too many connections, the
one whose deadline is next is closed: one that waits for a request before one that gets an answer.
Importing this module loads uvicorn (0.2 s), so import it only to serve something.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import resource
import socket
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rlax_plugin.config.addresses import bare

_CLOSE_S = 2.0
_BACKLOG = 128  # connections that are accepted together, before any of them counts
_FINISH_S = 1  # for requests under way when the server closes; uvicorn takes whole seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server's clients.

    Attributes:
      connections: maximum number of open connections; or a quarter of the files that this process
        may have open, if that is less. A connection starts behind its TLS handshake.
      connection_s: maximum seconds from the start of a connection to the end of its answer; with
        ``answer_s``, from its start or its last answer until the next request is there as a whole.
        A TLS handshake may take as long before.
      answer_s: maximum seconds from a request to the end of its answer. A connection may then have
        further requests, and ends with the client's half of it. 0: it gets one answer.
      head_bytes: maximum size of a request's first line and headers while they are incomplete; of
        twice as many bytes in one piece the request is rejected, too.
    """

    connections: int = 64
    connection_s: float = 5.0
    answer_s: float = 0.0
    head_bytes: int = 16 << 10


class HttpServer:
    """Serves an application on a thread of its own until it is closed.

    Args:
      app: called on that thread; while it computes without awaiting, other requests wait.
      host: address to bind.
      port: 0 takes any free one.
      limits: limits of clients.
      tls: files with the certificate and its private key (PEM); None: plain HTTP.

    Attributes:
      port: the port that is bound.

    Raises:
      OSError: the port is taken, or the files of ``tls`` cannot be used (``ssl.SSLError``).
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        limits: Limits = Limits(),
        tls: tuple[str, str] | None = None,
    ):
        limits = _affordable(limits)
        config = uvicorn.Config(
            app,
            http=cast(Any, partial(_Protocol, limits)),
            h11_max_incomplete_event_size=limits.head_bytes,
            headers=[] if limits.answer_s else [("Connection", "close")],
            timeout_keep_alive=math.ceil(limits.connection_s),
            ssl_certfile=tls and tls[0],
            ssl_keyfile=tls and tls[1],
            backlog=_BACKLOG,
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # bad requests are warnings, and any client can send them
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_FINISH_S,
        )
        config.load()  # here, because nobody would see an error of the thread
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((bare(host), port), family=family)
        self.port: int = listener.getsockname()[1]
        self._server = _Server(config, limits.connection_s)
        self._thread = threading.Thread(
            target=self._server.run, args=([listener],), name=f"http {self.port}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Frees the port, ends all connections and the thread; takes at most 2 s."""
        self._server.should_exit = True
        self._thread.join(_CLOSE_S)


def _affordable(limits: Limits) -> Limits:
    """With connections that leave the process files to open, and its other ports connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections=min(limits.connections, max(1, files // 4)))


class _Server(uvicorn.Server):
    """A server whose end waits for no client, and in which a TLS handshake has a deadline.

    Args:
      handshake_s: its seconds; uvicorn would leave asyncio's 60.
    """

    def __init__(self, config: uvicorn.Config, handshake_s: float):
        super().__init__(config)
        self._handshake_s = handshake_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        loop, config = asyncio.get_running_loop(), self.config
        protocol = partial(
            config.http_protocol_class, config=config, server_state=self.server_state, app_state={}
        )
        limit_s = self._handshake_s if config.ssl else None
        self.servers = [
            await loop.create_server(
                protocol,
                sock=one,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=limit_s,
            )
            for one in sockets
        ]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in [*self.server_state.connections]:
            cast(_Protocol, connection).transport.abort()
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """A connection with a deadline, which ends another one if there are too many."""

    def __init__(self, limits: Limits, **arguments: Any):
        super().__init__(**arguments)
        self._limits = limits
        self._answering: object = None  # the request whose answer has its deadline

    def _end_after(self, limit_s: float) -> None:
        if not self.transport.is_closing():
            self._deadline.cancel()
            self._deadline = self.loop.call_later(limit_s, self.transport.abort)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Otherwise an answer in two pieces waits for the client's delayed ACK, 40 ms; asyncio does
        # this only if the listener was made with the number of the protocol.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._deadline = self.loop.call_later(self._limits.connection_s, transport.abort)
        if len(self.connections) > self._limits.connections:
            connections = cast(set[_Protocol], self.connections)
            oldest = min(connections, key=lambda connection: connection._deadline.when())
            connections.discard(oldest)
            oldest.transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        cycle = self.cycle
        whole = cycle is not None and not cycle.more_body and not cycle.response_complete
        if self._limits.answer_s and whole and cycle is not self._answering:
            self._answering = cycle
            self._end_after(self._limits.answer_s)

    def on_response_complete(self) -> None:
        if self._limits.answer_s:
            self._end_after(self._limits.connection_s)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        # In pieces, because h11 limits a head only while it is incomplete.
        size = self._limits.head_bytes
        for begin in range(0, len(data), size):
            if not self.transport.is_closing():
                super().data_received(data[begin : begin + size])

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that its answer, which is too late, is no error
        super().send_400_response(msg)

    def eof_received(self) -> bool:
        # Who sends no more may still wait for an answer. But one that takes long would go on for a
        # client that has gone, which looks the same.
        return self.cycle is not None and not self._limits.answer_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        super().connection_lost(exc)


def read_only(app: ASGIApp, token: str) -> ASGIApp:
    """Lets only GET and HEAD without a body reach an application.

    Args:
      app: application to protect.
      token: each request must have it in ``Authorization: Bearer TOKEN``; "" if none is required.
    """

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        answer: ASGIApp = app
        if token and not _has_token(headers.getlist("authorization"), token):
            answer = PlainTextResponse("a token is required\n", 401, {"WWW-Authenticate": "Bearer"})
        elif not all(value.isascii() for _, value in scope["headers"]):
            answer = PlainTextResponse("headers must be ASCII\n", 400)
        elif scope["method"] not in ("GET", "HEAD"):
            answer = PlainTextResponse("only GET and HEAD\n", 405, {"Allow": "GET, HEAD"})
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            answer = PlainTextResponse("no body is allowed\n", 413)
        await answer(scope, receive, send)

    return guarded


def _has_token(values: list[str], token: str) -> bool:
    scheme, _, credentials = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    matches = hmac.compare_digest(credentials.strip().encode("latin-1"), token.encode())
    return matches and scheme.lower() == "bearer"
