"""A separate parameter server that is away for a while: every call to it is made again."""

import asyncio
import functools

import doors
import grpc
import pytest
from parameter_servers import CountsRenewals, Deleted, Steady, client_of, serving, version
from runs import free_port
from worker_harness import Counting, Worker, section, trainer, until

from rlax_plugin.base.concurrency.retrying import Pauses
from rlax_plugin.base.errors import DeadlineError, WeightsError
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.parameter_server import ParameterServer


class Deaf(ParameterServer):
    """Loses its first answers: the calls are processed, and their callers never hear of it."""

    lost = 1

    async def Publish(self, request, context):
        reply = await super().Publish(request, context)
        if self.lost:
            self.lost -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return reply


async def test_calls_wait_for_a_server_that_is_away(caplog):
    port = free_port()
    async with client_of(f"127.0.0.1:{port}", outage_s=60.0) as client:
        publishing = asyncio.ensure_future(client.publish(version(0), restart=True))
        await until(lambda: "announcing version 0 failed, trying again" in caplog.text)
        async with serving(Deleted(), port=port) as (service, _):
            await publishing
            assert service.latest == version(0)
        leased = asyncio.ensure_future(client.acquire(0).__aenter__())
        latest = asyncio.ensure_future(client.latest())
        async with serving(Deleted(), port=port) as (service, _):
            await service.publish(version(0))
            assert await leased == version(0) and await latest == version(0)


@pytest.fixture
def two_tries(monkeypatch):
    """0.7 s are enough for two tries, 0.5 s apart, however slow the machine is."""
    pauses = functools.partial(Pauses, clock=Steady(0.05))
    monkeypatch.setattr("rlax_plugin.weights.client.Pauses", pauses)


async def test_a_server_that_is_being_ended_or_hangs_is_away_too(two_tries):
    async with serving(Deleted()) as (service, address):
        await service.close()
        async with client_of(address, outage_s=0.3) as client:
            with pytest.raises(DeadlineError, match=r"being ended.*rlax\.deadlines\.weights_s"):
                await client.publish(version(0))
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with client_of(f"127.0.0.1:{port}", rpc_s=0.1, outage_s=0.7) as client:
        expected = r"\(2 failed.*no answer within 0\.1 s.*rlax\.deadlines\.weights_s"
        with pytest.raises(DeadlineError, match=expected):
            await client.publish(version(0))
    silent.close()


async def test_a_wrong_answer_is_not_waited_out():
    async with serving(Deleted()) as (_, address), client_of(address, outage_s=60.0) as client:
        await client.publish(version(1))
        with pytest.raises(WeightsError, match="version 0 cannot be published after"):
            await client.publish(version(0))
        with pytest.raises(WeightsError, match="requested version 7; available: 1"):
            async with client.acquire(7):
                pass


async def test_an_announcement_whose_answer_is_lost_is_made_again(tmp_path):
    store, index = Deleted(), tmp_path / "versions.json"
    async with (
        serving(store, kind=Deaf, index=index) as (service, address),
        client_of(address, outage_s=60.0) as client,
    ):
        await client.publish(version(0), restart=True)
        assert not service.lost and service.latest == version(0)
        for number in (1, 2):
            await client.publish(version(number))
        assert await store.wait_for(1) == ["/w/0"]
        async with client.acquire() as held:
            assert held == version(2)


async def test_an_index_that_cannot_be_written_for_a_while_delays_the_announcement(
    tmp_path, caplog
):
    index = tmp_path / "state" / "versions.json"
    index.parent.touch()  # no directory, as with a full disk no file
    async with (
        serving(Deleted(), index=index) as (service, address),
        client_of(address, outage_s=60.0) as client,
    ):
        publishing = asyncio.ensure_future(client.publish(version(0)))
        await until(lambda: "announcing version 0 failed, trying again" in caplog.text)
        index.parent.unlink()
        await publishing
    async with serving(Deleted(), index=index) as (service, _):
        assert service.latest == version(0)


async def test_a_lease_outlives_its_server(tmp_path):
    """An evaluation may take longer than the server's successor keeps its version by itself."""

    index, store, clock = tmp_path / "versions.json", Deleted(), Steady(0.5)
    lasting = {"keep": 1, "lease_s": 1.5, "clock": clock}
    async with serving(store, index=index, **lasting) as (service, address):
        await service.publish(version(0))
        client = await (opened := client_of(address)).__aenter__()
        lease = client.acquire(0)
        await lease.__aenter__()
    port = int(address.rsplit(":", 1)[1])
    again = serving(store, kind=CountsRenewals, index=index, port=port, **lasting)
    async with again as (service, _):
        await service.publish(version(1))
        await until(lambda: service.renewed > 4)  # what was leased before is free by then
        assert not store.paths
        await lease.__aexit__(None, None, None)
        assert await store.wait_for(1) == ["/w/0"]
    await opened.__aexit__(None, None, None)


async def test_a_worker_waits_for_its_first_weights_as_long_as_an_outage_may_last(caplog):
    settings = section({"startup_s": 2.0, "weights_s": 60.0})
    port = free_port()
    async with trainer(settings, parameter_server=f"127.0.0.1:{port}") as one:
        one.fleet.newest.number = 0
        worker = Worker("w", Counting(5), settings, one.address)
        await until(lambda: caplog.text.count("no weights yet") >= 6)  # once in 0.5 s
        async with serving(Deleted(), port=port) as (service, _):
            await service.publish(make_version(0, "/w/0"))
            await until(lambda: one.held("w") == 0)
            await worker.leave()


async def test_a_controller_that_ends_while_it_answers_is_waited_for():
    asked = asyncio.Event()

    class Ends(rpc.FleetServicer):
        async def Register(self, request, context):
            asked.set()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    settings = section()
    server, address = doors.server(port := free_port())
    rpc.add_FleetServicer_to_server(Ends(), server)
    await server.start()
    worker = Worker("w", Counting(5), settings, address)
    await asked.wait()
    await server.stop(None)
    async with trainer(settings, port=port) as two:
        await two.publish(0)
        await until(lambda: two.held("w") == 0)
        await worker.leave()
