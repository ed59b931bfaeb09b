"""Over gRPC, every worker process speaks for itself alone, and is called with its own secret."""

import asyncio
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import doors
import grpc
import pytest
from dispatching import registration

from rlax_plugin.base.errors import ConfigError, DeadlineError
from rlax_plugin.config import Deadlines
from rlax_plugin.config.handing import to_bytes
from rlax_plugin.config.loading import resolved
from rlax_plugin.rollout.fleet import fleet_service, identities
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.fleet_service import FleetService
from rlax_plugin.rollout.fleet.package_versions import PackageVersions
from rlax_plugin.rollout.worker.joining import fetch_config
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.secret import new_token
from rlax_plugin.rpc.transport.doors import Connection, connect

CERTIFICATE = doors.SECRETS.identity.certificate
DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


class Served:
    """A fleet behind a real port, with a connection that shows the run's worker token."""

    def __init__(self, fleet: Fleet, callers: Callers, connection: Connection):
        self.fleet, self.callers, self.connection = fleet, callers, connection

    def with_token(self, token: str) -> Any:
        return rpc.FleetStub(self.connection.showing(token))

    async def register(self, token: str, name: str = "w", **changes: Any) -> pb.RegisterReply:
        own = {"process": f"p{name}", "token": token, "certificate": CERTIFICATE}
        request = registration(name, **(own | changes))
        return await rpc.FleetStub(self.connection).Register(request, timeout=60)


@asynccontextmanager
async def served(versions: PackageVersions | None = None) -> Any:
    callers = doors.SECRETS.callers()
    server, address = doors.server(callers=callers)
    fleet = Fleet(
        deadlines=Deadlines(), config_hash="abc", parameter_server="127.0.0.1:1", config=b"{}"
    )
    rpc.add_FleetServicer_to_server(FleetService(fleet, callers, versions), server)
    await server.start()
    try:
        async with connect(address, doors.SECRETS.of_worker) as connection:
            yield Served(fleet, callers, connection)
    finally:
        await fleet.close()
        await server.stop(None)


async def status(call: Awaitable[Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_a_worker_is_heard_with_the_token_of_its_registration_alone() -> None:
    async with served() as one:
        first, second = new_token(), new_token()
        assert (await one.register(first, "a")).accepted
        assert (await one.register(second, "b")).accepted
        beat = pb.HeartbeatRequest(worker="a", process="pa", version=-1)
        assert (await one.with_token(first).Heartbeat(beat, timeout=60)).known
        for token in (second, doors.SECRETS.worker):
            assert await status(one.with_token(token).Heartbeat(beat, timeout=60)) is DENIED
        # The trainer's own token is for other methods; unknown ones are for none.
        trainer = one.with_token(doors.SECRETS.trainer)
        assert await status(trainer.Heartbeat(beat, timeout=60)) is DENIED
        assert await status(one.with_token(new_token()).Heartbeat(beat, timeout=60)) is UNKNOWN
        other = pb.HeartbeatRequest(worker="a", process="another", version=-1)
        assert await status(one.with_token(first).Heartbeat(other, timeout=60)) is DENIED


@pytest.mark.parametrize("quarantine", ["", "it lies"])
async def test_nobody_deregisters_or_quarantines_another_one(quarantine: str) -> None:
    async with served() as one:
        first, second = new_token(), new_token()
        await one.register(first, "a")
        await one.register(second, "b")
        end = pb.DeregisterRequest(worker="a", process="pa", quarantine=quarantine)
        for token in (second, doors.SECRETS.worker):
            assert await status(one.with_token(token).Deregister(end, timeout=60)) is DENIED
        assert set(one.fleet.workers) == {"a", "b"} and not one.fleet.identities.quarantined
        await one.with_token(first).Deregister(end, timeout=60)
        assert set(one.fleet.workers) == {"b"}
        assert dict(one.fleet.identities.quarantined) == ({"a": "it lies"} if quarantine else {})


async def test_a_new_registration_of_a_process_has_a_new_token() -> None:
    async with served() as one:
        first, second = new_token(), new_token()
        beat = pb.HeartbeatRequest(worker="w", process="pw", version=-1)
        await one.register(first)
        assert (await one.register(first)).accepted  # again: the reply was lost
        assert (await one.with_token(first).Heartbeat(beat, timeout=60)).known
        assert (await one.register(second)).accepted
        assert await status(one.with_token(first).Heartbeat(beat, timeout=60)) is UNKNOWN
        assert (await one.with_token(second).Heartbeat(beat, timeout=60)).known
        # A process of its name that is rejected changes nothing.
        assert (await one.register(new_token(), process="another")).name_taken
        assert (await one.with_token(second).Heartbeat(beat, timeout=60)).known


async def test_a_lost_worker_may_still_say_that_it_is_quarantined() -> None:
    async with served() as one:
        token = new_token()
        await one.register(token)
        one.fleet.lose(one.fleet.workers["w"], "no heartbeat")
        end = pb.DeregisterRequest(worker="w", process="pw", quarantine="a canary died")
        await one.with_token(token).Deregister(end, timeout=60)
        assert one.fleet.identities.quarantined == {"w": "a canary died"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"token": ""}, "64 hexadecimal digits"),
        ({"token": "g" * 64}, "64 hexadecimal digits"),
        ({"token": doors.SECRETS.trainer}, "in use"),
        ({"certificate": ""}, "one certificate in PEM"),
        ({"certificate": CERTIFICATE + CERTIFICATE}, "one certificate in PEM"),
        ({"certificate": doors.SECRETS.identity.key}, "one certificate in PEM"),
    ],
)
async def test_a_registration_without_a_secret_of_its_own_is_rejected(
    changes: dict[str, str], why: str
) -> None:
    async with served() as one:
        reply = await one.register(**({"token": new_token()} | changes))
        assert not reply.accepted and why in reply.reason and not one.fleet.workers
        # The run's own tokens are what they were.
        await rpc.FleetStub(one.connection).Config(pb.ConfigRequest(), timeout=60)


async def test_a_worker_with_other_packages_is_rejected_with_what_to_install() -> None:
    async with served(PackageVersions({"rlax-plugin": "0.1.0"})) as one:
        assert (await one.register(new_token(), versions={"rlax-plugin": "0.1.0"})).accepted
        for told in ({"rlax-plugin": "9.0"}, {}, {"rlax-plugin": "0.1\x1b"}):
            reply = await one.register(new_token(), "b", versions=told)
            assert (reply.accepted, reply.other_versions, reply.name_taken) == (False, True, False)
        assert set(one.fleet.workers) == {"w"}
        # A worker that asks for the config can see it before it builds its engine.
        stub = rpc.FleetStub(one.connection)
        reply = await stub.Config(pb.ConfigRequest(), timeout=60)
        assert dict(reply.versions) == {"rlax-plugin": "0.1.0"}


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_worker_with_other_packages_builds_no_engine(allowed: bool, tmp_path: Path) -> None:
    content = {
        "rlax": {
            "prompt_source": {"name": "numbers"},
            "rewards": [{"name": "even"}],
            "network": {"allow_other_versions": allowed},
        }
    }
    config = to_bytes(resolved(content, arguments=frozenset(), source="run.yml"))
    doors.SECRETS.of_worker.write(tmp_path / "token.json")

    callers = doors.SECRETS.callers()
    server, address = doors.server(callers=callers)
    fleet = Fleet(deadlines=Deadlines(), config_hash="a", parameter_server="h:1", config=config)
    versions = PackageVersions({"rlax-plugin": "9.0"}, allow_others=allowed)
    rpc.add_FleetServicer_to_server(FleetService(fleet, callers, versions), server)
    await server.start()
    fetched = fetch_config(address, str(tmp_path / "token.json"), 60.0, "w")
    if allowed:
        await fetched
    else:
        with pytest.raises(ConfigError, match=r"^installed packages: .* rlax-plugin==9\.0"):
            await fetched
    await server.stop(None)


def test_a_worker_without_a_token_says_at_once_what_it_waits_for(tmp_path, caplog) -> None:
    missing = str(tmp_path / "token.json")
    with pytest.raises(DeadlineError, match=r"token\.json"):
        asyncio.run(fetch_config("127.0.0.1:1", missing, 1.0))
    assert "no answer" not in caplog.text
    said = f"no token of the run yet: --token-file = '{missing}': does not exist"
    assert said in caplog.text


async def test_a_token_of_another_registration_cannot_be_taken_over() -> None:
    async with served() as one:
        token = new_token()
        await one.register(token, "a")
        assert "in use" in (await one.register(token, "b")).reason
        beat = pb.HeartbeatRequest(worker="a", process="pa", version=-1)
        assert (await one.with_token(token).Heartbeat(beat, timeout=60)).known


async def test_tokens_of_forgotten_processes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_MOST_IDENTITIES", 5)
    monkeypatch.setattr(fleet_service, "_MOST_FORGOTTEN", 3)

    async with served() as one:
        tokens = [new_token() for _ in range(30)]
        for index, token in enumerate(tokens):
            assert (await one.register(token, f"w{index}")).accepted
            one.fleet.lose(one.fleet.workers[f"w{index}"], "gone")
        taken = [token in one.callers for token in tokens]
        assert sum(taken) <= 5 + 3 and all(taken[-5:])


async def test_a_worker_is_called_with_the_secret_of_its_registration_and_nobody_else_may() -> None:
    """The controller's channel to a worker: its certificate is pinned, its token shown."""

    class Rollout(rpc.RolloutServicer):
        async def Health(self, request: pb.HealthRequest, context: Any) -> pb.HealthReply:
            return pb.HealthReply(version=3)

    async with served() as one:
        callers = Callers()
        server, address = doors.server(callers=callers)
        rpc.add_RolloutServicer_to_server(Rollout(), server)
        await server.start()
        token, others = new_token(), new_token()
        callers.admit(token, "trainer")
        await one.register(token, "a", address=address)
        await one.register(others, "b", address=address)  # it names a port that is not its own
        workers = one.fleet.workers
        reply = await workers["a"].link.stub.Health(pb.HealthRequest(), timeout=60)
        assert reply.version == 3
        asked = workers["b"].link.stub.Health(pb.HealthRequest(), timeout=60)
        assert await status(asked) is UNKNOWN
        await server.stop(None)
