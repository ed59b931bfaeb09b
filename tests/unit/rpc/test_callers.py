"""The table of methods is complete, and each caller gets through to what its role allows alone."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import doors
import grpc
import pytest

from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import METHODS, Caller, Callers, current_caller, with_token
from rlax_plugin.rpc.security.secret import Secret, new_token
from rlax_plugin.rpc.transport.channels import gone
from rlax_plugin.rpc.transport.doors import Connection, Door, connect, listen

SERVICES = pb.DESCRIPTOR.services_by_name.values()
TOKENS = {role: new_token() for role in ("trainer", "host", "worker", "client")}
LEASES = {"Latest", "Acquire", "Renew", "Release", "Watch", "Files", "Fetch"}
ALLOWED = {
    "trainer": LEASES | {"Generate", "GiveUp", "Health", "Publish", "Status"},
    "host": {"Join", "Batch", "Decision", "Stop", "Chunks"},
    "worker": LEASES | {"Config", "Register", "Heartbeat", "Deregister"},
    "client": {"Health", "Status"},
}


def test_every_method_of_the_protocol_is_in_the_table_and_no_other_one() -> None:
    names = {f"/{s.full_name}/{m.name}" for s in SERVICES for m in s.methods}
    assert len(names) == 21 and set(METHODS) == names
    assert all(METHODS.values())


class Everything(grpc.GenericRpcHandler):
    """Answers every method there may be with who has called it."""

    def service(self, handler_call_details: Any) -> Any:
        async def answer(requests: Any, context: Any) -> Any:
            caller = current_caller()
            assert caller is not None
            await asyncio.sleep(0)
            yield "+".join(sorted(caller.roles)).encode() + b" " + caller.process[0].encode()

        return grpc.stream_stream_rpc_method_handler(answer)


@asynccontextmanager
async def served(door: Door) -> Any:
    server, address = listen("127.0.0.1", 0, door, "port")
    server.add_generic_rpc_handlers((Everything(),))
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


async def call(channel: Any, method: str, sent: bytes = b"", **options: Any) -> str:
    """The answer to a message, or the status."""
    while True:
        try:
            stream = channel.stream_stream(method)(iter([sent]), timeout=60, **options)
            return b"".join([reply async for reply in stream]).decode().strip()
        except grpc.aio.AioRpcError as error:
            # A status that comes while the message is still being sent may be lost in gRPC.
            if error.code() is not grpc.StatusCode.INTERNAL or not gone(error):
                return error.code().name


def callers() -> Callers:
    found = Callers()
    for role, token in TOKENS.items():
        found.admit(token, role)
    return found


@pytest.mark.parametrize("role", [*TOKENS, "nobody"])
async def test_a_role_gets_through_to_its_methods_alone(role: str) -> None:
    certificate = doors.SECRETS.identity.certificate

    async with served(Door(callers(), doors.SECRETS.identity)) as address:
        secret = Secret(TOKENS.get(role, new_token()), certificate)
        async with connect(address, secret) as connection:
            answers = {
                method: await call(connection, method)
                for method in (*METHODS, "/rlax.v1.Fleet/Nothing", "/Other/Health", "/x")
            }
    through = {method for method, answer in answers.items() if answer == role}
    assert {method.rpartition("/")[2] for method in through} == ALLOWED.get(role, set())
    others = {answer for method, answer in answers.items() if method not in through}
    assert others == {"UNAUTHENTICATED" if role == "nobody" else "PERMISSION_DENIED"}


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer "),),
        (("authorization", TOKENS["trainer"]),),
        (("authorization", f"bearer {TOKENS['trainer']}"),),
        (("authorization", f"Bearer {TOKENS['trainer']} "),),
        (("authorization", f"Bearer {TOKENS['trainer'].upper()}"),),
        (("authorization-bin", f"Bearer {TOKENS['trainer']}".encode()),),
        (("authorization", "Bearer x"), ("authorization", f"Bearer {TOKENS['trainer']}")),
    ],
)
async def test_what_is_not_exactly_a_token_is_none(metadata: tuple[tuple[str, Any], ...]) -> None:
    credentials = grpc.ssl_channel_credentials(doors.SECRETS.identity.certificate.encode())
    named = (("grpc.ssl_target_name_override", "rlax"),)
    async with (
        served(Door(callers(), doors.SECRETS.identity)) as address,
        grpc.aio.secure_channel(address, credentials, named) as channel,
    ):
        method = "/rlax.v1.Rollout/Generate"
        assert await call(channel, method, metadata=metadata) == "UNAUTHENTICATED"
        right = with_token(TOKENS["trainer"])
        assert await call(channel, method, metadata=right) == "trainer"


async def test_a_call_without_a_message_is_refused_at_once() -> None:
    """Nothing is kept waiting for somebody who shows no token."""

    secret = Secret(new_token(), doors.SECRETS.identity.certificate)
    async with (
        served(Door(callers(), doors.SECRETS.identity)) as address,
        connect(address, secret) as connection,
    ):
        silent = connection.stream_stream("/rlax.v1.Rollout/Generate")()  # sends nothing
        assert await silent.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_services_of_an_engine_are_for_clients_and_only_where_they_are_named() -> None:
    method, other = "/jetstream_proto.Orchestrator/Decode", "/jetstream_proto.Orchestrators/Decode"
    certificate = doors.SECRETS.identity.certificate

    for front_ends, answer in (((), "PERMISSION_DENIED"), ((SERVICE,), "client")):
        door = Door(callers(), doors.SECRETS.identity, front_ends)
        async with served(door) as address:
            for role, token in TOKENS.items():
                async with connect(address, Secret(token, certificate)) as connection:
                    expected = answer if role == "client" else "PERMISSION_DENIED"
                    assert await call(connection, method) == expected
                    assert await call(connection, other) == "PERMISSION_DENIED"


SERVICE = "jetstream_proto.Orchestrator"


async def test_an_open_port_answers_anybody_as_a_client_and_knows_tokens_all_the_same() -> None:
    open_to = Callers(Caller(frozenset({"client"})))
    open_to.admit(TOKENS["trainer"], "trainer")
    door = Door(open_to, None, (SERVICE,))
    async with served(door) as address, grpc.aio.insecure_channel(address) as channel:
        assert await call(channel, f"/{SERVICE}/Decode") == "client"
        assert await call(channel, "/rlax.v1.Rollout/Generate") == "PERMISSION_DENIED"
        as_trainer = Connection(channel, TOKENS["trainer"])
        assert await call(as_trainer, "/rlax.v1.Rollout/Generate") == "trainer"
        wrong = Connection(channel, new_token())
        assert await call(wrong, f"/{SERVICE}/Decode") == "UNAUTHENTICATED"


async def test_a_token_that_is_dismissed_is_taken_no_more_and_one_admitted_later_is() -> None:
    known, token = callers(), new_token()
    async with (
        served(Door(known, doors.SECRETS.identity)) as address,
        connect(address, Secret(token, doors.SECRETS.identity.certificate)) as connection,
    ):
        method = "/rlax.v1.Fleet/Heartbeat"
        assert await call(connection, method) == "UNAUTHENTICATED"
        known.admit(token, "worker", process=("w", "p"))
        assert await call(connection, method) == "worker w" and token in known
        shown = connection.showing(TOKENS["worker"])
        assert await call(shown, method) == "worker"  # the same channel, another token
        known.dismiss(token)
        assert await call(connection, method) == "UNAUTHENTICATED" and token not in known
    assert current_caller() is None


class Rollout(rpc.RolloutServicer):
    async def Generate(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield pb.Reply()

    async def Health(self, request: Any, context: Any) -> pb.HealthReply:
        return pb.HealthReply()


@pytest.mark.parametrize("method", ["Generate", "Health"])
async def test_bytes_that_are_no_message_of_a_method_are_refused(method: str) -> None:
    door = Door(callers(), doors.SECRETS.identity)
    server, address = listen("127.0.0.1", 0, door, "port")
    rpc.add_RolloutServicer_to_server(Rollout(), server)
    await server.start()
    secret = Secret(TOKENS["trainer"], doors.SECRETS.identity.certificate)
    async with connect(address, secret) as connection:
        name = f"/rlax.v1.Rollout/{method}"
        assert await call(connection, name, b"\xff") == "INVALID_ARGUMENT"
        assert await call(connection, name) == ""  # a message of defaults, and its reply
    await server.stop(None)
