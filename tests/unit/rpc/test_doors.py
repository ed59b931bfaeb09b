"""Who has taken over a port learns nothing; and connections that say nothing are closed."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import doors
import grpc
import pytest
from cryptography import x509
from waiting import eventually

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.certificate import Identity, new_identity
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.channels import SERVER_OPTIONS, describe
from rlax_plugin.rpc.transport.doors import Door, connect, listen

LIMIT_S = 60.0


class Collector(grpc.GenericRpcHandler):
    """Takes every call and keeps its metadata and messages."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def service(self, handler_call_details: Any) -> Any:
        self.heard.append(handler_call_details.invocation_metadata)

        async def answer(requests: Any, context: Any) -> Any:
            async for request in requests:
                self.heard.append(request)
                yield b""

        return grpc.stream_stream_rpc_method_handler(answer)


@pytest.mark.parametrize("proves", ["nothing", "another certificate"])
async def test_a_process_that_takes_over_a_port_is_told_nothing(proves: str) -> None:
    first, address = doors.server()
    first.add_generic_rpc_handlers((honest := Collector(),))
    await first.start()
    secret = Secret(doors.SECRETS.trainer, doors.SECRETS.identity.certificate)
    async with connect(address, secret) as connection:
        stub = rpc.ParameterServerStub(connection)
        await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
        assert len(honest.heard) == 2
        await first.stop(None)
        collector = Collector()
        port = int(address.rpartition(":")[2])
        other = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        other.add_generic_rpc_handlers((collector,))
        if proves == "nothing":
            assert other.add_insecure_port(address) == port
        else:
            mine = new_identity()
            pair = mine.key.encode(), mine.certificate.encode()
            assert other.add_secure_port(address, grpc.ssl_server_credentials([pair])) == port
        await other.start()
        for _ in range(4):  # the same channel, which connects again
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            known = "has another certificate than the expected one" in describe(caught.value)
            assert known == (proves != "nothing")
            await asyncio.sleep(0.05)
        assert collector.heard == []
        await other.stop(None)
        again, _ = doors.server(port)
        again.add_generic_rpc_handlers((Collector(),))
        await again.start()
        await stub.Latest(pb.LatestRequest(), wait_for_ready=True, timeout=LIMIT_S)
        await again.stop(None)


async def test_a_connection_that_never_says_anything_is_closed(monkeypatch) -> None:
    key = "grpc.server_handshake_timeout_ms"
    sooner = [(name, 300 if name == key else value) for name, value in SERVER_OPTIONS]
    assert dict(SERVER_OPTIONS)[key] == 20_000
    monkeypatch.setattr("rlax_plugin.rpc.transport.doors.SERVER_OPTIONS", tuple(sooner))

    server, address = doors.server()
    await server.start()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await reader.read(1) == b""  # it is closed by the server
    writer.close()
    await server.stop(None)


async def test_a_connection_without_calls_that_falls_silent_is_closed(monkeypatch) -> None:
    sooner = {"grpc.keepalive_time_ms": 1_000, "grpc.keepalive_timeout_ms": 300}
    sooner |= {"grpc.http2.ping_timeout_ms": 300}
    assert dict(SERVER_OPTIONS).keys() >= sooner.keys()
    options = tuple((dict(SERVER_OPTIONS) | sooner).items())
    monkeypatch.setattr("rlax_plugin.rpc.transport.doors.SERVER_OPTIONS", options)

    server, address = listen("127.0.0.1", 0, Door(Callers(), None), "key")
    await server.start()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    # Its own and a confirmation of the server's, which completes the handshake.
    settings = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)) + bytes((0, 0, 0, 4, 1, 0, 0, 0, 0))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    assert b"ping_timeout" in await reader.read()  # it is closed by the server
    writer.close()
    await server.stop(None)


async def test_many_connections_leave_a_process_its_own_files(monkeypatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (40, 40))

    server, address = doors.server()
    server.add_generic_rpc_handlers((collector := Collector(),))
    await server.start()
    secret = Secret(doors.SECRETS.trainer, doors.SECRETS.identity.certificate)
    host, _, port = address.rpartition(":")
    async with connect(address, secret) as connection:
        stub = rpc.ParameterServerStub(connection)
        await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(30)]
        reads = [asyncio.ensure_future(reader.read(1)) for reader, _ in opened]
        # Half of the files, of which the honest one has one: the others are turned away.
        await eventually(lambda: sum(one.done() for one in reads) >= 11, "11 turned away")
        assert {one.result() for one in reads if one.done()} == {b""}
        await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
        assert len([one for one in reads if one.done()]) == 11
        for _, writer in opened:
            writer.close()
        await asyncio.gather(*reads)
    async with connect(address, secret) as connection:  # there is room again
        stub = rpc.ParameterServerStub(connection)
        await stub.Latest(pb.LatestRequest(), wait_for_ready=True, timeout=LIMIT_S)
    assert len(collector.heard) == 6
    await server.stop(None)


async def test_a_port_that_is_taken_is_an_error_of_its_key() -> None:
    taken, address = doors.server()
    port = int(address.rpartition(":")[2])
    door = Door(doors.SECRETS.callers(), doors.SECRETS.identity)
    with pytest.raises(ConfigError, match=f"rlax.network.port = {port}: cannot be used on"):
        listen("127.0.0.1", port, door, "rlax.network.port")
    await taken.stop(None)


@pytest.mark.parametrize("certificate", ["", "-----BEGIN CERTIFICATE-----\nAA=="])
async def test_a_certificate_that_is_none_connects_to_nothing(certificate: str) -> None:
    server, address = doors.server()
    server.add_generic_rpc_handlers((collector := Collector(),))
    await server.start()
    async with connect(address, Secret(new_token(), certificate)) as connection:
        with pytest.raises(grpc.aio.AioRpcError):
            await rpc.FleetStub(connection).Config(pb.ConfigRequest(), timeout=5)
    assert collector.heard == []
    await server.stop(None)


def test_a_clock_that_is_wrong_parts_nobody() -> None:
    """A machine may learn the right time only after a run has made its secrets, or lose it."""
    made = new_identity()
    certificate = x509.load_pem_x509_certificate(made.certificate.encode())
    years = certificate.not_valid_before_utc.year, certificate.not_valid_after_utc.year
    assert years == (1970, 9999)
    asyncio.run(asyncio.wait_for(_called(made), LIMIT_S))  # gRPC takes it


@pytest.mark.parametrize("name", ["http_proxy", "https_proxy", "grpc_proxy"])
def test_no_proxy_is_asked_for_a_server_of_this_machine(name: str, monkeypatch) -> None:
    with socket.socket() as silent:  # nobody listens there
        silent.bind(("127.0.0.1", 0))
        monkeypatch.setenv(name, f"http://127.0.0.1:{silent.getsockname()[1]}")
        asyncio.run(asyncio.wait_for(_called(new_identity()), LIMIT_S))


async def _called(identity: Identity) -> None:
    """Calls a server that proves itself so."""
    callers, token = Callers(), new_token()
    callers.admit(token, "worker")
    server, address = listen("127.0.0.1", 0, Door(callers, identity), "port")
    server.add_generic_rpc_handlers((collector := Collector(),))
    await server.start()
    async with connect(address, Secret(token, identity.certificate)) as connection:
        await rpc.FleetStub(connection).Config(pb.ConfigRequest(), timeout=LIMIT_S)
    assert len(collector.heard) == 2
    await server.stop(None)


async def test_a_host_is_no_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker says where the controller is to connect to: a host, whatever its name."""
    monkeypatch.chdir(tmp_path)

    identity, collector = new_identity(), Collector()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((collector,))
    pair = identity.key.encode(), identity.certificate.encode()
    server.add_secure_port("unix:80", grpc.ssl_server_credentials([pair]))
    await server.start()
    assert (tmp_path / "80").is_socket()
    async with connect("unix:80", Secret(new_token(), identity.certificate)) as connection:
        with pytest.raises(grpc.aio.AioRpcError):
            await rpc.FleetStub(connection).Config(pb.ConfigRequest(), timeout=5)
    assert collector.heard == []
    await server.stop(None)
