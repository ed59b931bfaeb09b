"""A small HTTP server for a WSGI application, such as the page that Prometheus scrapes.

All connections are served on one thread, and each gets one answer. A client that is silent, slow
or sends too much delays neither other clients nor the end of the process: every connection has a
deadline, and if there are too many, the oldest one is closed.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import unquote
from wsgiref.types import WSGIApplication

from rlax_plugin.config.addresses import bare

CONNECTIONS = 64
"""Maximum number of open connections."""
CONNECTION_S = 5.0
"""Maximum seconds from the start of a connection to the end of its answer."""
HEAD_BYTES = 16 << 10
"""Maximum size of a request's first line and headers."""
_HEADERS = 64  # of one request
_REST_BYTES = 1 << 20  # read and thrown away, so that a client that sends too much gets its answer
_CLOSE_S = 2.0
_REQUEST = re.compile(r"([A-Z]{1,16}) (/[!-~]*) (HTTP/1\.[01])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0\r\n]*)")

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _Request:
    """The head of a request; header names are lower-case."""

    method: str
    target: str
    protocol: str
    headers: Mapping[str, str]


class _RejectedError(Exception):
    """A request that gets an error as its answer."""

    def __init__(self, status: HTTPStatus, *headers: tuple[str, str]):
        self.status, self.headers = status, headers


class WsgiServer:
    """Serves an application on a thread of its own until it is closed.

    Only GET and HEAD without a body are answered, for any path.

    Args:
      host: address to bind.
      port: 0 takes any free one.
      app: called on that thread, for one request at a time; while it computes, others wait.
      token: each request must have it in ``Authorization: Bearer TOKEN``; "" if none is required.

    Attributes:
      port: the port that is bound.

    Raises:
      OSError: the port is taken.
    """

    def __init__(self, host: str, port: int, app: WSGIApplication, *, token: str = ""):
        self._host, self._app, self._token = host, app, token.encode()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((bare(host), port), family=family, backlog=CONNECTIONS)
        self.port: int = listener.getsockname()[1]
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name=f"http {self.port}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Frees the port, ends all connections and the thread; takes at most 2 s."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(_CLOSE_S)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._connected, sock=listener, limit=HEAD_BYTES)
        await self._closing.wait()
        server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(CONNECTION_S):
                await self._answer(reader, writer)
        except (OSError, EOFError):  # of which the deadline's TimeoutError is one
            pass  # it is the client's loss
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rejected = False
        try:
            request = _parsed(await _head(reader))
            self._check(request)
            status, headers, body = self._called(request)
            if request.method == "HEAD":
                body = b""
        except _RejectedError as error:
            rejected = True
            body = f"{error.status.value} {error.status.phrase}\n".encode()
            status = f"{error.status.value} {error.status.phrase}"
            plain = ("Content-Type", "text/plain; charset=utf-8")
            headers = (*error.headers, plain, ("Content-Length", str(len(body))))
        lines = [f"HTTP/1.1 {status}", "Connection: close", *(f"{k}: {v}" for k, v in headers)]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await writer.drain()
        if rejected:  # closing with something unread would reset the connection: no answer
            writer.write_eof()
            await _read_rest(reader)
        writer.close()
        await writer.wait_closed()

    def _check(self, request: _Request) -> None:
        if self._token:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            known = hmac.compare_digest(given.strip().encode("latin-1"), self._token)
            if not known or scheme.lower() != "bearer":
                raise _RejectedError(HTTPStatus.UNAUTHORIZED, ("WWW-Authenticate", "Bearer"))
        if request.method not in ("GET", "HEAD"):
            raise _RejectedError(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        length = request.headers.get("content-length", "0")
        if length != "0" or "transfer-encoding" in request.headers:
            raise _RejectedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _called(self, request: _Request) -> tuple[str, Headers, bytes]:
        started: list[tuple[str, Headers]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
        ) -> Any:
            started.append((status, headers))

        path, _, query = request.target.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query,
            "SERVER_NAME": self._host,
            "SERVER_PORT": str(self.port),
            "SERVER_PROTOCOL": request.protocol,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in request.headers.items():
            environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        body = b"".join(self._app(environ, start_response))
        status, headers = started[-1]
        framing = ("connection", "content-length")
        headers = [(name, value) for name, value in headers if name.lower() not in framing]
        return status, (*headers, ("Content-Length", str(len(body)))), body


async def _head(reader: asyncio.StreamReader) -> str:
    """The first line and the headers of a request."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _RejectedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
    return head[:-4].decode("latin-1")


def _parsed(head: str) -> _Request:
    first, *lines = head.split("\r\n")
    if (request := _REQUEST.fullmatch(first)) is None:
        raise _RejectedError(HTTPStatus.BAD_REQUEST)
    if len(lines) > _HEADERS:
        raise _RejectedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    headers: dict[str, str] = {}
    for line in lines:
        if (header := _HEADER.fullmatch(line)) is None:
            raise _RejectedError(HTTPStatus.BAD_REQUEST)
        name, value = header[1].lower(), header[2].strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return _Request(request[1], request[2], request[3], headers)


async def _read_rest(reader: asyncio.StreamReader) -> None:
    left = _REST_BYTES
    while left > 0 and (data := await reader.read(1 << 16)):
        left -= len(data)
