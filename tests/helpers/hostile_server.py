"""A server on this machine that answers as a test says: well, badly, slowly or not at all.

It speaks real HTTP over a socket. It is a fake only in what it answers.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


@dataclass
class Asked:
    """A request: what it says, and how it is answered."""

    path: str
    headers: dict[str, str]
    body: Any
    handler: Any = field(repr=False)

    def json(self, content: Any, status: int = 200, **headers: str) -> None:
        self.reply(json.dumps(content).encode(), status, **headers)

    def reply(self, data: bytes, status: int = 200, **headers: str) -> None:
        """Headers are given with _ for -."""
        self.handler.send_response(status)
        for name, value in ({"Content_Length": str(len(data))} | headers).items():
            self.handler.send_header(name.replace("_", "-"), value)
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def endless(self, piece: bytes, stop: threading.Event, pause_s: float = 0.0) -> int:
        """Sends a body until nobody reads it any more; bytes that were sent."""
        self.handler.send_response(200)
        self.handler.end_headers()
        sent = 0
        with suppress(OSError):
            while not stop.wait(pause_s) if pause_s else not stop.is_set():
                self.handler.wfile.write(piece)
                self.handler.wfile.flush()
                sent += len(piece)
        return sent


Answer = Callable[[Asked], None]


class Server(ThreadingHTTPServer):
    """Answers requests by ``answers`` in turn, the last of which stays.

    Attributes:
      asked: every request so far.
      stop: is set at the end, for answers that go on.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *answers: Answer, port: int = 0, path: str = ""):
        self.answers, self.asked = list(answers), list[Asked]()
        self.stop, self._lock = threading.Event(), threading.Lock()
        self._connections: list[socket.socket] = []
        if path:
            self.address_family = socket.AF_UNIX
        super().__init__(path or ("127.0.0.1", port), _Handler)
        self.url = "http://server" if path else f"http://127.0.0.1:{self.server_port}"

    def server_bind(self) -> None:
        if self.address_family == socket.AF_UNIX:
            TCPServer.server_bind(self)  # without a look for the host's name
        else:
            super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def die(self) -> None:
        """Ends what listens, and every connection."""
        self.stop.set()
        self.shutdown()
        self.server_close()
        for one in self._connections:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def answer(self, asked: Asked) -> None:
        with self._lock:
            self.asked.append(asked)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        answer(asked)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is what some tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.answer(Asked(self.path, dict(self.headers), json.loads(data), self))

    def do_GET(self) -> None:
        self.server.answer(Asked(self.path, dict(self.headers), None, self))

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(*answers: Answer, port: int = 0, path: str = "") -> Iterator[Server]:
    """A server that runs until the end of the block, on a unix socket if there is a path."""
    server = Server(*answers, port=port, path=path)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.die()
        thread.join(60)
