"""Every method of every endpoint is refused to who should not call it, and both sides say why."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import doors
import grpc
import pytest
from certificates import days_ago, identity_of, made
from toy_versions import scripted

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.config.network import Place
from rlax_plugin.rollout.worker.endpoint import Endpoint
from rlax_plugin.rpc.security.authority import CA
from rlax_plugin.rpc.security.callers import METHODS, Callers, Refusals, with_token
from rlax_plugin.rpc.security.certificate import Identity, new_identity
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.channels import describe, gone
from rlax_plugin.rpc.transport.doors import Connection, Door, client_channel, connect, listen
from rlax_plugin.rpc.transport.own_address import own_address

LIMIT_S = 60.0
ROLES = ("trainer", "host", "worker", "client")
TOKENS = {role: new_token() for role in ROLES}
SERVICES = {"controller": ("Fleet", "ParameterServer", "Run"), "worker": ("Rollout",)}
ENDPOINTS = pytest.mark.parametrize("endpoint", SERVICES)


def methods(endpoint: str) -> list[str]:
    """Of its services alone: it has no others, and a role that may call them gets UNIMPLEMENTED."""
    return [name for name in METHODS if name.split("/")[1].split(".")[-1] in SERVICES[endpoint]]


class Reached(grpc.GenericRpcHandler):
    """Keeps the methods whose calls were let in."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def service(self, handler_call_details: Any) -> Any:
        self.methods.append(handler_call_details.method)

        async def answer(requests: Any, context: Any) -> AsyncIterator[bytes]:
            yield b""

        return grpc.stream_stream_rpc_method_handler(answer)


@dataclasses.dataclass
class Served:
    """A running endpoint.

    Attributes:
      secret: with which its honest clients connect, without a token.
    """

    address: str
    secret: Secret
    reached: Reached


def all_roles() -> Callers:
    callers = Callers()
    for role, token in TOKENS.items():
        callers.admit(token, role)
    return callers


@asynccontextmanager
async def served(
    endpoint: str, folder: Path, identity: Identity | None = None
) -> AsyncIterator[Served]:
    """The endpoint, as runs open it: a worker's has its own certificate, others the operator's.

    Args:
      identity: presented in place of the checked one.
    """
    reached, certificate = Reached(), doors.SECRETS.identity.certificate
    if endpoint == "worker":
        with Endpoint(Place(), scripted(), name="w") as worker:
            secret = worker.expect_trainer()
            for role, token in TOKENS.items():
                worker.callers.admit(token, role)
            worker.server.add_generic_rpc_handlers((reached,))
            await worker.server.start()
            try:
                yield Served(worker.address, secret, reached)
            finally:
                await worker.server.stop(None)
        return
    tls = made(folder, "127.0.0.1")
    door = Door(all_roles(), identity or OperatorIdentity(tls, ["127.0.0.1"]))
    server, address = listen("127.0.0.1", 0, door, "port")
    server.add_generic_rpc_handlers((reached,))
    await server.start()
    try:
        yield Served(address, Secret("", certificate, (folder / CA).read_text()), reached)
    finally:
        await server.stop(None)


async def call(channel: Any, method: str, **options: Any) -> grpc.aio.AioRpcError | None:
    while True:
        try:
            stream = channel.stream_stream(method)(iter([b""]), timeout=LIMIT_S, **options)
            assert [reply async for reply in stream] == [b""]
            return None
        except grpc.aio.AioRpcError as error:
            # A status that comes while the message is still being sent may be lost in gRPC.
            if error.code() is not grpc.StatusCode.INTERNAL or not gone(error):
                return error


def run(main: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 120))


async def refused(one: Served, channel: Any, endpoint: str) -> Mapping[str, str]:
    """Calls every method; returns the status and, of a ``Connection``, the sentences."""
    found: dict[str, str] = {}
    for method in methods(endpoint):
        error = await call(channel, method)
        assert error is not None, method
        if isinstance(channel, Connection):
            await channel.diagnose(error)
        found[method] = describe(error)
    assert one.reached.methods == []
    return found


@ENDPOINTS
@pytest.mark.parametrize("shown", ["no token", "wrong token", "wrong scheme"])
def test_without_a_token_nothing_is_answered_and_the_log_says_who_asked(
    endpoint: str, shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {
        "no token": (),
        "wrong token": with_token(new_token()),
        "wrong scheme": (("authorization", f"Basic {TOKENS['worker']}"),),
    }
    why = "shows no token" if shown == "no token" else "shows a token that is not taken here"

    async def main() -> None:
        async with served(endpoint, tmp_path) as one:
            roots = (one.secret.authority or one.secret.certificate).encode()
            name = "127.0.0.1" if one.secret.authority else "rlax"
            channel = grpc.aio.secure_channel(
                one.address,
                grpc.ssl_channel_credentials(roots),
                (("grpc.ssl_target_name_override", name),),
            )
            async with channel:
                for method in methods(endpoint):
                    error = await call(channel, method, metadata=metadata[shown])
                    assert error is not None and error.code().name == "UNAUTHENTICATED"
                    assert why in describe(error)
            assert one.reached.methods == []

    run(main)
    lines = [line for line in caplog.messages if line.startswith("rejected a call of")]
    # One line for all of them: a caller cannot fill the log.
    assert len(lines) == 1 and why in lines[0]
    assert re.match(r"rejected a call of /rlax\.v1\.\w+/\w+ from ipv4:127\.0\.0\.1:\d+: ", lines[0])
    assert TOKENS["worker"] not in caplog.text


@ENDPOINTS
def test_another_role_is_named_to_the_caller_and_in_the_log(
    endpoint: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with served(endpoint, tmp_path) as one:
            for role, token in TOKENS.items():
                secret = dataclasses.replace(one.secret, token=token)
                async with connect(one.address, secret) as connection:
                    for method in methods(endpoint):
                        if role in METHODS[method]:
                            continue
                        error = await call(connection, method)
                        assert error is not None, (role, method)
                        assert error.code().name == "PERMISSION_DENIED"
                        needed = " or ".join(sorted(METHODS[method]))
                        said = f"the role {role} of this token does not allow this method (allowed:"
                        assert f"{said} {needed})" in describe(error)
            assert one.reached.methods == []

    run(main)
    assert "the role client of this token does not allow this method" in caplog.text


@ENDPOINTS
def test_without_encryption_nothing_is_answered(endpoint: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            served(endpoint, tmp_path) as one,
            grpc.aio.insecure_channel(one.address) as channel,
        ):
            for status in (await refused(one, channel, endpoint)).values():
                assert status.startswith("UNAVAILABLE")

    run(main)


@pytest.fixture
def each_call_diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlax_plugin.rpc.transport.doors._DIAGNOSE_EVERY_S", 0.0)


@ENDPOINTS
def test_a_foreign_certificate_is_not_accepted(
    endpoint: str, tmp_path: Path, each_call_diagnosed: None
) -> None:
    """The client expects another authority, or another certificate."""

    async def main() -> None:
        async with served(endpoint, tmp_path / "own") as one:
            made(tmp_path / "other", "127.0.0.1")
            authority = (tmp_path / "other" / CA).read_text() if one.secret.authority else ""
            other = Secret(TOKENS["worker"], new_identity().certificate, authority)
            said = "is not signed by the expected authority" if authority else "another certificate"
            async with connect(one.address, other) as connection:
                for status in (await refused(one, connection, endpoint)).values():
                    assert status.startswith("UNAVAILABLE") and said in status

    run(main)


def test_an_expired_certificate_is_not_accepted(tmp_path: Path, each_call_diagnosed: None) -> None:
    with days_ago(10):
        made(tmp_path, "127.0.0.1", days=5)
    old = identity_of(tmp_path)

    async def main() -> None:
        async with served("controller", tmp_path, old) as one:
            secret = dataclasses.replace(one.secret, token=TOKENS["worker"])
            async with connect(one.address, secret) as connection:
                for status in (await refused(one, connection, "controller")).values():
                    assert "UNAVAILABLE: the certificate of 127.0.0.1, or of an authority" in status

    run(main)


def test_a_certificate_for_another_name_is_not_accepted(
    tmp_path: Path, each_call_diagnosed: None
) -> None:
    async def main() -> None:
        async with served("controller", tmp_path) as one:
            secret = dataclasses.replace(one.secret, token=TOKENS["worker"])
            address = one.address.replace("127.0.0.1", "localhost")
            async with connect(address, secret) as connection:
                for status in (await refused(one, connection, "controller")).values():
                    assert "UNAVAILABLE: the certificate is not for localhost" in status

    run(main)


def test_a_server_without_tls_is_recognised() -> None:
    async def main() -> None:
        reached, server = Reached(), grpc.aio.server()
        server.add_generic_rpc_handlers((reached,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with connect(f"127.0.0.1:{port}", doors.SECRETS.of_worker) as connection:
            error = await call(connection, "/rlax.v1.Fleet/Config")
            assert error is not None
            await connection.diagnose(error)
            assert "does not use TLS" in describe(error) and reached.methods == []
        await server.stop(None)

    run(main)


def test_a_server_that_is_not_there_is_described_as_before() -> None:
    async def main() -> None:
        async with connect("127.0.0.1:1", doors.SECRETS.of_worker) as connection:
            error = await call(connection, "/rlax.v1.Fleet/Config")
            assert error is not None
            before = describe(error)
            await connection.diagnose(error)
            assert describe(error) == before and before.startswith("UNAVAILABLE")

    run(main)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "trainer.example.org"])
def test_no_port_beyond_loopback_is_without_encryption(host: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=f"--host = '{host}': must be a loopback address"):
            listen(host, 0, Door(Callers(), None), "--port")

    run(main)
    with pytest.raises(ConfigError, match="would leave this machine without encryption"):
        client_channel(f"{host.replace('::', '[::]')}:80")


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("::", "[::1]")])
@pytest.mark.parametrize("operator", [False, True])
def test_ipv6(host: str, shown: str, operator: bool, tmp_path: Path) -> None:
    async def main() -> None:
        identity: Any = doors.SECRETS.identity
        secret = doors.SECRETS.of_worker
        if operator:
            identity = OperatorIdentity(made(tmp_path, "::1"), ["::1"])
            authority = (tmp_path / CA).read_text()
            secret = dataclasses.replace(secret, authority=authority)
        door = Door(doors.SECRETS.callers(), identity)
        server, address = listen(host, 0, door, "port", advertised="::1" if host == "::" else "")
        server.add_generic_rpc_handlers((Reached(),))
        await server.start()
        assert address.startswith(f"{shown}:")
        async with connect(address, secret) as connection:
            assert await call(connection, "/rlax.v1.Fleet/Config") is None
        await server.stop(None)

    run(main)


def test_a_port_of_all_addresses_is_reached_at_the_advertised_one() -> None:
    own = own_address("192.0.2.1:80")  # sends nothing there
    if own == "127.0.0.1":
        pytest.skip("this machine has no other address")

    async def main() -> None:
        door = Door(doors.SECRETS.callers(), doors.SECRETS.identity)
        server, address = listen("0.0.0.0", 0, door, "port", advertised=own)
        server.add_generic_rpc_handlers((Reached(),))
        await server.start()
        assert address.startswith(f"{own}:")
        assert own_address(address) == "127.0.0.1"  # it is this machine's
        async with connect(address, doors.SECRETS.of_worker) as connection:
            assert await call(connection, "/rlax.v1.Fleet/Config") is None
        await server.stop(None)

    run(main)


def test_rejected_calls_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    for port in range(1000):
        refusals.note("no token", "/a/b", f"ipv4:10.0.0.1:{port}")
    assert len(caplog.messages) == 1
    now = 61.0
    refusals.note("no token", "/a/\x1b[2Jb" * 100, "ipv4:10.0.0.1:5")
    assert "(999 more like it since the last such line)" in caplog.messages[1]
    assert "\x1b" not in caplog.text and len(caplog.messages[1]) < 400
    for host in range(1000):
        refusals.note("no token", "/a/b", f"ipv4:10.0.{host}:5")
    assert len(refusals._noted) == 256


def test_a_controller_whose_name_is_unknown_is_one_error() -> None:
    with pytest.raises(ConfigError, match=r"^--controller = .*: has no route from this machine"):
        own_address("no.such.host.invalid:80")
