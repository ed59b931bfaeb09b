"""A worker with wrong weights stops and says so, and nothing that it generated is used."""

import asyncio
from typing import Any

import doors
import grpc
import pytest
from worker_harness import (
    CONTINUE,
    LIMIT_S,
    Counting,
    NoBytes,
    Worker,
    group,
    member,
    port_of,
    section,
    trainer,
    until,
)

from rlax_plugin.base.errors import WeightsError, WeightsMismatchError, WorkerError
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.rollout.fleet.fleet_service import FleetService
from rlax_plugin.rollout.worker.member import PROCESS
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.pieces import request_messages
from rlax_plugin.weights.parameter_server import ParameterServer


@pytest.mark.parametrize(
    ("error", "loads"),
    [
        (WeightsMismatchError("variable 'w' has fingerprint 1, but 2 was published"), [0, 1]),
        (WeightsError("'w' was not published"), [0, 1, 1, 1]),
    ],
)
async def test_a_worker_with_wrong_weights_is_quarantined(error, loads, short_pauses):
    settings = section(**CONTINUE)
    async with trainer(settings) as one:
        await one.publish(0)
        bad = Worker("bad", Counting(100_000), settings, one.address)
        bad.engine.faults[1] = error
        await until(lambda: one.held("bad") == 0)
        ticket = one.dispatcher.submit(group(0))
        await until(lambda: 0 in bad.engine.last)
        await one.publish(1)
        with pytest.raises(WeightsError, match=str(error)):
            await bad.life
        assert bad.engine.loads == loads and bad.engine.cancelled == 1
        assert one.quarantined == [("bad", str(error))]
        assert one.fleet.identities.quarantined == {"bad": str(error)}
        assert one.lost == [f"bad: quarantined: {error}"] and one.held("bad") == -2
        # Nothing that it had reported goes on elsewhere.
        good = Worker("good", Counting(5), settings, one.address)
        asked, samples, _ = await ticket
        assert asked.resume == () and one.dispatcher.tokens_resumed == 0
        assert one.again == [(0, 2, f"quarantined: {error}")]
        assert [s.versions.tolist() for s in samples] == [[1] * 5] * 2
        await good.leave()


async def test_a_version_is_not_reported_before_it_is_proved():
    class Hasty(Counting):
        async def use(self, loaded: Loaded) -> None:
            self.version = loaded.version
            if loaded.version == 1:
                await self.go.wait()
                raise WeightsMismatchError("its canary died")

    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        engine = Hasty(5)
        engine.go = asyncio.Event()
        worker = Worker("w", engine, settings, one.address)
        await until(lambda: one.held("w") == 0)
        await one.publish(1)
        await until(lambda: engine.version == 1)
        member = one.fleet.workers["w"]
        for _ in range(2):
            seen = member.last_seen
            await until(lambda s=seen: member.last_seen > s)
            assert member.version == 0
        engine.go.set()
        with pytest.raises(WeightsMismatchError):
            await worker.life
        assert member.version == 0 and one.quarantined == [("w", "its canary died")]


async def test_a_worker_without_proved_weights_takes_no_groups():
    settings = section()
    async with trainer(settings) as one:
        worker = Worker("w", Counting(5), settings, one.address)
        await until(lambda: one.held("w") == -1)
        call = one.fleet.workers["w"].link.stub.Generate(
            request_messages([group(0)]), timeout=LIMIT_S
        )
        with pytest.raises(grpc.aio.AioRpcError, match="holds no weights yet") as failure:
            await call.read()
        assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
        await worker.leave()


async def test_nothing_is_generated_between_a_mismatch_and_the_leases_release():
    engine = Counting(100_000)
    generating: list[bool] = []

    class Watched(ParameterServer):
        async def Release(self, request: Any, context: Any) -> Any:
            generating.append(engine.cancelled == 0)
            return await super().Release(request, context)

    settings = section(**CONTINUE)
    async with trainer(settings, parameters=Watched(NoBytes(), keep=2, lease_s=60)) as one:
        await one.publish(0)
        worker = Worker("w", engine, settings, one.address)
        await until(lambda: one.held("w") == 0)
        one.dispatcher.submit(group(0))
        await until(lambda: 0 in engine.last)
        engine.faults[1] = WeightsMismatchError("a canary died")
        await one.publish(1)
        with pytest.raises(WeightsMismatchError):
            await worker.life
        assert generating == [True, False]


async def test_what_is_read_after_a_quarantine_is_not_accepted():
    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        worker = Worker("w", Counting(5, every=5), settings, one.address)
        await until(lambda: one.held("w") == 0)
        member = one.fleet.workers["w"]
        generate = member.link.stub.Generate

        async def late(*args: Any, **kwargs: Any) -> Any:
            async for reply in generate(*args, **kwargs):
                request = pb.DeregisterRequest(
                    worker="w", quarantine="a canary died", process=PROCESS
                )
                await one.fleet.Deregister(request, None)
                yield reply

        member.link.stub.Generate = late
        ticket = one.dispatcher.submit(group(0))
        await until(lambda: one.again)
        assert one.again == [(0, 2, "quarantined: a canary died")] and not ticket.done()
        # The process itself has not heard of it yet; it asks to be registered and gives up.
        with pytest.raises(WorkerError, match="quarantined: a canary died"):
            await worker.life


async def test_a_quarantine_is_told_until_it_is_heard():
    settings = section()
    async with trainer(settings) as one:
        bad = member(settings, one.address)
        await bad.register()
        heard: list[str] = []
        deregister = one.fleet.Deregister

        async def busy(request: pb.DeregisterRequest, context: Any) -> Any:
            heard.append(request.quarantine)
            if len(heard) < 3:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
            return await deregister(request, context)

        one.fleet.Deregister = busy
        await one.server.stop(None)
        one.server, _ = doors.server(port_of(one), one.callers)
        rpc.add_FleetServicer_to_server(FleetService(one.fleet, one.callers), one.server)
        await one.server.start()
        bad.quarantine = "a canary died"
        await bad.leave()
        assert heard == ["a canary died"] * 3 and one.quarantined == [("w", "a canary died")]
