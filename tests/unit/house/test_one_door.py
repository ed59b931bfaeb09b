"""Only ``rlax_plugin/rpc`` listens on a port or connects to one (docs/security.md, Ports)."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from documents import ROOT

OPENS = {
    *("insecure_channel", "secure_channel", "add_insecure_port", "add_secure_port"),
    *("start_server", "start_unix_server", "create_server", "open_connection", "listen"),
    *("create_connection", "create_datagram_endpoint", "open_unix_connection", "connect_ex"),
    *("HTTPServer", "ThreadingHTTPServer", "TCPServer", "start_http_server", "Listener"),
}
SOURCES = sorted(
    path
    for room in ("rlax_plugin", "plugins", "maxtext_overrides", "benchmarks")
    for path in (ROOT / room).rglob("*.py")
    if ROOT / "rlax_plugin/rpc" not in path.parents and not path.stem.endswith("_grpc")
)


def opened(source: str) -> Iterator[str]:
    """Yields line and name of each call that opens a port or a connection."""
    tree = ast.parse(source)
    doors = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "rlax_plugin.rpc.transport.doors"
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute) and called.attr in OPENS:
                yield f"line {node.lineno}: {called.attr}"
            if isinstance(called, ast.Name) and called.id in OPENS - doors:
                yield f"line {node.lineno}: {called.id}"


def test_no_other_module_opens_a_port_or_a_connection() -> None:
    found = {str(path.relative_to(ROOT)): list(opened(path.read_text())) for path in SOURCES}
    assert {path: calls for path, calls in found.items() if calls} == {}
    assert len(SOURCES) > 500


@pytest.mark.parametrize(
    "source",
    [
        "server.add_insecure_port('127.0.0.1:0')",
        "channel = grpc.aio.insecure_channel(address)",
        "await asyncio.start_server(answer, host, 0)",
        "from socket import create_server\ncreate_server(('', 0))",
        "listen(host)",
        "socket.socket().listen()",
    ],
)
def test_each_way_of_opening_one_is_found(source: str) -> None:
    assert len(list(opened(source))) == 1


def test_the_one_place_may() -> None:
    source = "from rlax_plugin.rpc.transport.doors import listen\nlisten(host, 0, door, 'k')"
    assert list(opened(source)) == []
