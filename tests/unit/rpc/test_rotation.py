"""Certificates and worker tokens change under calls that go on, without a restart."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import made

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.authority import CA, SERVER, make_certificates
from rlax_plugin.rpc.security.callers import Callers
from rlax_plugin.rpc.security.operator_certificate import OperatorIdentity
from rlax_plugin.rpc.security.run_secrets import Upkeep, known_secrets, rotate, run_secrets
from rlax_plugin.rpc.security.secret import FollowedSecret, Secret, new_token, read_secret
from rlax_plugin.rpc.transport.doors import Door, connect, listen

LIMIT_S = 60.0
HOST = "127.0.0.1"


class Versions(rpc.ParameterServerServicer):
    """A stream that goes on until it is told to end, and a short call."""

    def __init__(self) -> None:
        self.numbers: asyncio.Queue[int] = asyncio.Queue()

    async def Latest(self, request: Any, context: Any) -> pb.LatestReply:
        return pb.LatestReply(any=False)

    async def Watch(self, request: Any, context: Any) -> Any:
        while True:
            yield pb.Version(version=await self.numbers.get())


async def presented(address: str) -> str:
    """The certificate that a new connection sees."""
    host, port = address.rsplit(":", 1)
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)), timeout=LIMIT_S)


async def test_a_new_certificate_serves_new_connections_and_open_calls_go_on(tmp_path) -> None:
    tls = made(tmp_path, HOST)
    callers, token, versions = Callers(), new_token(), Versions()
    callers.admit(token, "worker")

    server, address = listen(HOST, 0, Door(callers, OperatorIdentity(tls, [HOST])), "port")
    rpc.add_ParameterServerServicer_to_server(versions, server)
    await server.start()
    secret = Secret(token, "", (tmp_path / CA).read_text())
    async with connect(address, secret) as connection:
        stub = rpc.ParameterServerStub(connection)
        watch = stub.Watch(pb.WatchRequest(), timeout=LIMIT_S)
        versions.numbers.put_nowait(1)
        assert (await watch.read()).version == 1
        first = (tmp_path / SERVER).read_text()
        assert await presented(address) == first
        (tmp_path / SERVER).write_text(first[:200])  # half-written
        assert await presented(address) == first
        make_certificates(tmp_path, (HOST,), 60)
        second = (tmp_path / SERVER).read_text()
        assert await presented(address) == second != first
        versions.numbers.put_nowait(2)
        assert (await watch.read()).version == 2
        await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
        async with connect(address, secret) as another:
            latest = rpc.ParameterServerStub(another).Latest
            await latest(pb.LatestRequest(), timeout=LIMIT_S)
        watch.cancel()
    await server.stop(None)


async def test_a_rotated_token_is_used_at_once_and_the_old_one_ends_at_its_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = run_secrets(tmp_path)
    callers, notes, now = secrets.callers(), list[str](), 0.0
    upkeep = Upkeep(secrets, callers, secrets.identity, note=notes.append, clock=lambda: now)
    versions = Versions()

    server, address = listen(HOST, 0, Door(callers, secrets.identity), "port")
    rpc.add_ParameterServerServicer_to_server(versions, server)
    await server.start()
    followed = FollowedSecret(secrets.worker_file, "--token-file")
    async with connect(address, followed) as connection:
        stub = rpc.ParameterServerStub(connection)
        upkeep.look()
        watch = stub.Watch(pb.WatchRequest(), timeout=LIMIT_S)
        versions.numbers.put_nowait(1)
        assert (await watch.read()).version == 1
        rotated = rotate(tmp_path, 100.0)
        assert followed.token == rotated.worker != secrets.worker
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)  # until the next heartbeat
        now = rotated.earlier_until - 100
        upkeep.look()
        await stub.Latest(pb.LatestRequest(), timeout=LIMIT_S)
        versions.numbers.put_nowait(2)
        assert (await watch.read()).version == 2
        tokens = rotated.worker, secrets.worker, secrets.trainer
        assert [token in callers for token in tokens] == [True] * 3
        now += 99
        upkeep.look()
        assert secrets.worker in callers
        now += 2
        upkeep.look()
        assert [token in callers for token in tokens] == [True, False, True]
        watch.cancel()
    await server.stop(None)
    assert notes == ["the worker token was rotated; the one before is accepted for 100 s"]
    for token in (secrets.worker, secrets.trainer):
        assert token not in caplog.text


def test_a_restart_and_further_rotations_know_the_tokens(tmp_path: Path) -> None:
    first = run_secrets(tmp_path)
    second = rotate(tmp_path, 100.0)
    assert (second.trainer, second.identity) == (first.trainer, first.identity)
    again = run_secrets(tmp_path)
    assert (again.worker, again.earlier) == (second.worker, first.worker)
    assert first.worker in again.callers() and second.worker in again.callers()
    assert read_secret(first.worker_file, "k") == second.of_worker
    callers = first.callers()
    upkeep = Upkeep(first, callers, first.identity, note=lambda line: None)
    third = rotate(tmp_path, 100.0)
    upkeep.look()
    known = [token in callers for token in (first.worker, second.worker, third.worker)]
    assert known == [False, True, True]  # only one token is old and accepted
    last = rotate(tmp_path, 0.0)
    upkeep.look()
    known = [token in callers for token in (first.worker, second.worker, third.worker)]
    assert known == [False, False, False] and last.worker in callers
    assert first.trainer in callers
    assert run_secrets(tmp_path).callers().of(()) is None


def test_secrets_that_are_replaced_or_damaged_change_nothing(tmp_path, caplog) -> None:
    secrets = run_secrets(tmp_path)
    callers = secrets.callers()
    upkeep = Upkeep(secrets, callers, secrets.identity, note=lambda line: None)
    upkeep.look()
    for text in ("", "{", json.dumps({"worker": new_token()})):
        (tmp_path / "secrets.json").write_text(text)
        upkeep.look()
    (tmp_path / "secrets.json").unlink()
    upkeep.look()
    run_secrets(tmp_path)
    upkeep.look()
    assert secrets.worker in callers and secrets.trainer in callers
    assert caplog.text.count("the run's secrets were replaced") == 4


@pytest.mark.parametrize(
    "harm",
    [{"earlier": 7}, {"earlier_until": "x"}, {"earlier": new_token(), "earlier_until": None}],
)
def test_a_damaged_earlier_token_is_not_believed(harm: dict[str, Any], tmp_path: Path) -> None:
    run_secrets(tmp_path)
    path = tmp_path / "secrets.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | harm))
    assert known_secrets(tmp_path) is None
    with pytest.raises(ConfigError, match="is damaged"):
        rotate(tmp_path, 1.0)


def test_a_run_without_secrets_has_nothing_to_rotate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no secrets yet"):
        rotate(tmp_path, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_token_file_that_is_bad_for_a_while_keeps_the_token(tmp_path, caplog) -> None:
    secrets = run_secrets(tmp_path)
    path, good = secrets.worker_file, secrets.worker_file.read_bytes()
    followed = FollowedSecret(path, "--token-file")
    for bad in (b"", b"{", b"\xff" * 10):
        path.write_bytes(bad)
        assert followed.token == followed.token == secrets.worker
    assert caplog.text.count("the token before stays in use") == 3
    path.unlink()
    assert followed.token == secrets.worker
    (tmp_path / "other").mkdir()
    other = run_secrets(tmp_path / "other")
    other.of_worker.write(path)
    assert followed.token == secrets.worker and "is of another run now" in caplog.text
    path.write_bytes(good)
    rotate(tmp_path, 1.0)
    assert followed.token == read_secret(path, "k").token != secrets.worker


def test_an_authority_stays_in_the_workers_file(tmp_path: Path) -> None:
    made(tmp_path / "certs", HOST)
    authority = (tmp_path / "certs" / CA).read_text()
    run_secrets(tmp_path, authority)
    assert read_secret(tmp_path / "worker-token.json", "k").authority == authority
    rotated = rotate(tmp_path, 1.0)
    assert read_secret(tmp_path / "worker-token.json", "k") == rotated.of_worker
    assert rotated.of_worker.authority == authority
    assert run_secrets(tmp_path).authority == ""


def test_a_certificate_that_ends_is_told_of_each_day(tmp_path: Path) -> None:
    secrets = run_secrets(tmp_path)
    identity = OperatorIdentity(made(tmp_path / "certs", HOST, days=3), [HOST])
    notes, now = list[str](), 0.0
    upkeep = Upkeep(secrets, secrets.callers(), identity, note=notes.append, clock=lambda: now)
    for at in (0.0, 2.0, 86_399.0):
        now = at
        upkeep.look()
    assert len(notes) == 1 and "expires at" in notes[0]
    now = 86_401.0
    upkeep.look()
    assert len(notes) == 2
    make_certificates(tmp_path / "certs", (), 60)
    now = 3 * 86_400.0
    upkeep.look()
    assert len(notes) == 2
