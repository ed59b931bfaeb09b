"""The HTTP server, asked by real clients over loopback, good and bad ones."""

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from certificates import made
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp
from waiting import wait_until

from rlax_plugin.rpc.transport.http import HttpServer, Limits, read_only

LIMIT_S = 60.0
CONNECTIONS, HEAD_BYTES = Limits().connections, Limits().head_bytes
TOKEN = "a-token-of-24-characters"


async def app(scope, receive, send):
    request = Request(scope)
    text = f"{request.url.path}?{request.url.query} {request.headers.get('x', '')}"
    await PlainTextResponse(text)(scope, receive, send)


@contextmanager
def served(token: str = "", app: ASGIApp = app, **limits: float) -> Iterator[HttpServer]:
    server = HttpServer(read_only(app, token), "127.0.0.1", 0, Limits(**limits))
    try:
        yield server
    finally:
        server.close()


def asked(
    server: HttpServer, method: str = "GET", path: str = "/metrics", **headers: str
) -> tuple[int, str, str | None]:
    """Status, body, and the header WWW-Authenticate."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers["WWW-Authenticate"]
    finally:
        connection.close()


def connected(server: HttpServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)


def first_bytes(client: socket.socket, count: int) -> bytes:
    """So many bytes, which may come in pieces; fewer if it ends before."""
    with client.makefile("rb", buffering=0) as answer:
        pieces = b""
        while piece := answer.read(count - len(pieces)):
            pieces += piece
    return pieces


def told(server: HttpServer, sent: bytes) -> bytes:
    """The whole answer to raw bytes; empty if there is none."""
    with connected(server) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_an_answer_in_pieces_waits_for_no_acknowledgement() -> None:
    with served() as server, connected(server) as client:
        wait_until(lambda: server._server.server_state.connections, "there is no connection")
        (open_connection,) = server._server.server_state.connections
        accepted = open_connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        client.close()


def test_an_open_page_answers_get_and_head() -> None:
    with served() as server:
        assert asked(server, path="/a%20b?c=d", X="e") == (200, "/a b?c=d e", None)
        assert asked(server, "HEAD") == (200, "", None)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": "Bearer \xfc"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
    ],
)
def test_a_token_is_needed_if_there_is_one(sent: dict[str, str], status: int) -> None:
    with served(TOKEN) as server:
        for method in ("GET", "HEAD"):
            assert asked(server, method, **sent)[::2] == (
                status,
                "Bearer" if status == 401 else None,
            )


def test_two_authorizations_are_none() -> None:
    header = f"Authorization: Bearer {TOKEN}\r\n".encode()
    with served(TOKEN) as server:
        assert told(server, b"GET / HTTP/1.1\r\nHost: h\r\n" + header + b"\r\n").startswith(
            b"HTTP/1.1 200 "
        )
        assert told(server, b"GET / HTTP/1.1\r\nHost: h\r\n" + 2 * header + b"\r\n").startswith(
            b"HTTP/1.1 401 "
        )


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST / HTTP/1.1\r\nHost: h\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", b"413"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nno header\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),  # a client that speaks TLS
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"A: 1\r\n" * HEAD_BYTES + b"\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: " + 2 * HEAD_BYTES * b"a" + b"\r\n\r\n", b"400"),
        (b"GET /" + 2 * HEAD_BYTES * b"a", b"400"),
    ],
)
def test_other_requests_get_an_error(sent: bytes, status: bytes) -> None:
    with served() as server:
        assert told(server, sent).startswith(b"HTTP/1.1 " + status + b" ")
        assert asked(server)[0] == 200


def test_bad_requests_write_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """Any user of the machine can send them, and as many as it likes."""
    chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    other = b"GET / HTTP/1.1\r\nHost: h\r\nAccept: \xff\r\n\r\n"
    with served(TOKEN) as server:
        assert told(server, chunked).startswith(b"HTTP/1.1 400 ")
    with served() as server:
        assert told(server, other).startswith(b"HTTP/1.1 400 ")
    assert caplog.records == []


def test_half_a_request_gets_nothing() -> None:
    with served() as server:
        assert told(server, b"GET / HTTP/1.1\r\nHost: h\r\nA: 1") == b""
        assert told(server, b"") == b""


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_silent_clients_do_not_stop_others(sent: bytes) -> None:
    with ExitStack() as stack, served() as server:
        for _ in range(3 * CONNECTIONS):
            stack.enter_context(connected(server)).sendall(sent)
        assert asked(server)[0] == 200
        server.close()  # with all of them open
        with pytest.raises(OSError):
            connected(server)


def test_the_oldest_connection_makes_room() -> None:
    with ExitStack() as stack, served() as server:
        clients = [stack.enter_context(connected(server)) for _ in range(CONNECTIONS)]
        assert asked(server)[0] == 200
        assert clients[0].recv(1) == b""
        clients[1].sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert first_bytes(clients[1], 12) == b"HTTP/1.1 200"


def test_a_silent_or_slow_client_is_dropped_after_a_time() -> None:
    with served(connection_s=0.1) as server, connected(server) as silent, connected(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n")
        assert silent.recv(1) == b""

        def ended() -> bool:
            try:
                slow.sendall(b"A: 1\r\n")
            except OSError:
                return True
            return False

        wait_until(ended, "a client that sends bit by bit is not dropped")


def test_a_silent_client_of_a_server_with_tls_is_dropped_after_a_time(tmp_path: Path) -> None:
    tls = made(tmp_path, "127.0.0.1")
    files = (tls.certificate, tls.key)
    server = HttpServer(app, "127.0.0.1", 0, Limits(connection_s=0.1), files)
    try:
        with connected(server) as client:
            client.settimeout(30)  # asyncio itself would wait 60 s for a handshake
            assert client.recv(1) == b""
    finally:
        server.close()


def test_a_certificate_that_cannot_be_used_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("no certificate")
    with pytest.raises(ssl.SSLError):
        HttpServer(app, "127.0.0.1", 0, tls=(f"{tmp_path}/c.pem", f"{tmp_path}/c.pem"))


def test_a_client_that_reads_nothing_is_dropped() -> None:
    page = Response(bytes(64 << 20))
    with served(app=page, connection_s=4.0) as server, connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert first_bytes(client, 12) == b"HTTP/1.1 200"
        open_connections = server._server.server_state.connections
        wait_until(lambda: not open_connections, "it keeps its connection")
        assert sum(map(len, iter(lambda: client.recv(1 << 20), b""))) < 64 << 20


def test_an_app_that_fails_costs_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def failing(scope, receive, send):
        if scope["path"] == "/fail":
            raise ValueError("no figures")
        await app(scope, receive, send)

    with served(app=failing) as server:
        assert asked(server, path="/fail")[0] == 500
        assert asked(server)[0] == 200
    assert "no figures" in caplog.text


def test_close_does_not_wait_for_an_app_that_hangs() -> None:
    called, go, waited = threading.Event(), threading.Event(), list[bool]()

    async def hanging(scope, receive, send):
        called.set()
        waited.append(go.wait(LIMIT_S))
        await app(scope, receive, send)

    with served(app=hanging) as server, connected(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert called.wait(LIMIT_S)
        server.close()
        assert not waited  # the app still hangs
        go.set()


def test_idle_connections_leave_the_process_files_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (40, 40))
    with served(connection_s=LIMIT_S) as server, ExitStack() as idle:
        for _ in range(30):
            idle.enter_context(connected(server))
        assert asked(server)[0] == 200
        assert len(server._server.server_state.connections) <= 10
