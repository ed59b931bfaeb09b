"""Calls of who should not make them are refused at every endpoint, and both sides say why."""

import dataclasses
import re
from collections.abc import AsyncIterator
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
from rlax_plugin.rpc.security.callers import Callers, Refusals, with_token
from rlax_plugin.rpc.security.certificate import Identity, new_identity
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.channels import describe, gone
from rlax_plugin.rpc.transport.doors import Connection, Door, client_channel, connect, listen
from rlax_plugin.rpc.transport.own_address import own_address

LIMIT_S = 60.0
TOKENS = {role: new_token() for role in ("trainer", "host", "worker", "client")}
METHOD = "/rlax.v1.Fleet/Config"


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
async def served(folder: Path, identity: Identity | None = None) -> AsyncIterator[Served]:
    """The controller's endpoint with a certificate of the operator's.

    Args:
      identity: presented in place of the checked one.
    """
    reached, tls = Reached(), made(folder, "127.0.0.1")
    door = Door(all_roles(), identity or OperatorIdentity(tls, ["127.0.0.1"]))
    server, address = listen("127.0.0.1", 0, door, "port")
    server.add_generic_rpc_handlers((reached,))
    await server.start()
    try:
        yield Served(address, Secret("", "", (folder / CA).read_text()), reached)
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


async def refusal(one: Served, channel: Any, **options: Any) -> str:
    """The status of a call that must not reach the service, and the sentence about it."""
    error = await call(channel, METHOD, **options)
    assert error is not None and one.reached.methods == []
    if isinstance(channel, Connection):
        await channel.diagnose(error)
    return describe(error)


@pytest.mark.parametrize("shown", ["no token", "wrong token"])
async def test_without_a_token_nothing_is_answered_and_the_log_says_who_asked(
    shown: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = () if shown == "no token" else with_token(new_token())
    why = "shows no token" if shown == "no token" else "shows a token that is not taken here"

    async with served(tmp_path) as one:
        roots = grpc.ssl_channel_credentials(one.secret.authority.encode())
        async with grpc.aio.secure_channel(one.address, roots) as channel:
            for _ in range(3):
                said = await refusal(one, channel, metadata=metadata)
                assert said.startswith("UNAUTHENTICATED") and why in said
    lines = [line for line in caplog.messages if line.startswith("rejected a call of")]
    # One line for all of them: a caller cannot fill the log.
    assert len(lines) == 1 and why in lines[0]
    assert re.match(r"rejected a call of /rlax\.v1\.\w+/\w+ from ipv4:127\.0\.0\.1:\d+: ", lines[0])


async def test_another_role_is_named_to_the_caller_and_in_the_log(tmp_path, caplog) -> None:
    async with served(tmp_path) as one:
        secret = dataclasses.replace(one.secret, token=TOKENS["client"])
        async with connect(one.address, secret) as connection:
            said = await refusal(one, connection)
            assert "does not allow this method (allowed: worker)" in said
    assert "the role client of this token does not allow this method" in caplog.text
    assert TOKENS["client"] not in caplog.text


async def test_a_worker_answers_its_trainer_alone_and_over_tls_alone() -> None:
    method = "/rlax.v1.Rollout/Generate"

    with Endpoint(Place(), scripted(), name="w") as worker:
        secret = worker.expect_trainer()
        worker.server.add_generic_rpc_handlers((Reached(),))
        await worker.server.start()
        other = dataclasses.replace(secret, token=new_token())
        async with (
            connect(worker.address, secret) as trainer,
            connect(worker.address, other) as stranger,
            grpc.aio.insecure_channel(worker.address) as plain,
        ):
            assert await call(trainer, method) is None
            for channel, code in ((stranger, "UNAUTHENTICATED"), (plain, "UNAVAILABLE")):
                error = await call(channel, method)
                assert error is not None and error.code().name == code
        await worker.server.stop(None)


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_foreign_certificate_is_not_accepted(pinned: bool, tmp_path: Path) -> None:
    """The client expects another authority, or another certificate."""

    async with served(tmp_path / "own") as one:
        made(tmp_path / "other", "127.0.0.1")
        authority = "" if pinned else (tmp_path / "other" / CA).read_text()
        other = Secret(TOKENS["worker"], new_identity().certificate, authority)
        said = "another certificate" if pinned else "is not signed by the expected authority"
        async with connect(one.address, other) as connection:
            status = await refusal(one, connection)
            assert status.startswith("UNAVAILABLE") and said in status


async def test_an_expired_certificate_is_not_accepted(tmp_path: Path) -> None:
    with days_ago(10):
        made(tmp_path, "127.0.0.1", days=5)
    old = identity_of(tmp_path)

    async with served(tmp_path, old) as one:
        secret = dataclasses.replace(one.secret, token=TOKENS["worker"])
        async with connect(one.address, secret) as connection:
            status = await refusal(one, connection)
            assert "UNAVAILABLE: the certificate of 127.0.0.1, or of an authority" in status


async def test_a_certificate_for_another_name_is_not_accepted(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        secret = dataclasses.replace(one.secret, token=TOKENS["worker"])
        address = one.address.replace("127.0.0.1", "localhost")
        async with connect(address, secret) as connection:
            status = await refusal(one, connection)
            assert "UNAVAILABLE: the certificate is not for localhost" in status


async def test_a_server_without_tls_is_recognised() -> None:
    reached, server = Reached(), grpc.aio.server()
    server.add_generic_rpc_handlers((reached,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with connect(f"127.0.0.1:{port}", doors.SECRETS.of_worker) as connection:
        error = await call(connection, METHOD)
        assert error is not None
        await connection.diagnose(error)
        assert "does not use TLS" in describe(error) and reached.methods == []
    await server.stop(None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "trainer.example.org"])
async def test_no_port_beyond_loopback_is_without_encryption(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--host = '{host}': must be a loopback address"):
        listen(host, 0, Door(Callers(), None), "--port")
    with pytest.raises(ConfigError, match="would leave this machine without encryption"):
        client_channel(f"{host.replace('::', '[::]')}:80")


@pytest.mark.parametrize(
    ("host", "operator"), [("::1", False), ("[::1]", False), ("::", False), ("::1", True)]
)
async def test_ipv6(host: str, operator: bool, tmp_path: Path) -> None:
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
    assert address.startswith("[::1]:")
    async with connect(address, secret) as connection:
        assert await call(connection, METHOD) is None
    await server.stop(None)


async def test_a_port_of_all_addresses_is_reached_at_the_advertised_one() -> None:
    own = own_address("192.0.2.1:80")  # sends nothing there
    if own == "127.0.0.1":
        pytest.skip("this machine has no other address")

    door = Door(doors.SECRETS.callers(), doors.SECRETS.identity)
    server, address = listen("0.0.0.0", 0, door, "port", advertised=own)
    server.add_generic_rpc_handlers((Reached(),))
    await server.start()
    assert address.startswith(f"{own}:")
    assert own_address(address) == "127.0.0.1"  # it is this machine's
    async with connect(address, doors.SECRETS.of_worker) as connection:
        assert await call(connection, METHOD) is None
    await server.stop(None)


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
    written = len(caplog.messages)
    refusals.note("no token", "/a/b", "ipv4:10.0.0:5")  # forgotten meanwhile, as the oldest ones
    assert len(caplog.messages) == written + 1


def test_a_controller_whose_name_is_unknown_is_one_error() -> None:
    with pytest.raises(ConfigError, match=r"^--controller = .*: has no route from this machine"):
        own_address("no.such.host.invalid:80")
