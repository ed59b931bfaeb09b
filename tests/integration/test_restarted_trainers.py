"""Workers whose trainer process is started again load the weights of the new one."""

from typing import Any

import doors
import pytest
from worker_harness import (
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

from rlax_plugin.base.errors import WeightsMismatchError
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.weights.parameter_server import ParameterServer


@pytest.mark.parametrize("number", [5, 7])  # lower than what the worker holds, and the same
async def test_a_worker_outlives_its_trainer_and_loads_the_new_ones_weights(number):
    settings = section()
    async with trainer(settings) as one:
        await one.publish(7)
        worker = Worker("w", Counting(5), settings, one.address)
        await until(lambda: one.held("w") == 7)
    async with trainer(settings, port=port_of(one)) as two:
        versions = two.became_ready
        await until(lambda: two.held("w") == -1)
        ticket = two.dispatcher.submit(group(0))
        for _ in range(3):  # heartbeats: it holds 7, and does not say so
            seen = two.fleet.workers["w"].last_seen
            await until(lambda s=seen: two.fleet.workers["w"].last_seen > s)
            assert two.held("w") == -1 and not worker.engine.asked
        await two.publish(number, restart=True)
        _, samples, _ = await ticket
        assert worker.engine.loads == [7, number] and versions == [number]
        assert [s.versions.tolist() for s in samples] == [[number] * 5] * 2
        await two.publish(number + 1)
        await until(lambda: two.held("w") == number + 1)
        await worker.leave()


async def test_a_parameter_server_that_outlives_the_trainer_does_not_serve_its_versions():
    settings = section()
    store = ParameterServer(NoBytes(), keep=4, lease_s=60)
    server, address = doors.server()
    store.add_to(server)
    await server.start()
    alone: dict[str, Any] = {"parameters": store, "parameter_server": address}
    async with trainer(settings, **alone) as apart:
        for number in (6, 7):
            await apart.publish(number)
        old = Worker("old", Counting(5), settings, apart.address)
        await until(lambda: apart.held("old") == 7)
    async with trainer(settings, port=port_of(apart), **alone) as two:
        new = Worker("new", Counting(5), settings, two.address)
        await until(lambda: two.held("old") == two.held("new") == -1)
        for name in ("old", "new"):
            seen = two.fleet.workers[name].last_seen
            await until(lambda n=name, s=seen: two.fleet.workers[n].last_seen > s + 0.3)
        assert (old.engine.loads, new.engine.loads) == ([7], [])
        await two.publish(5, restart=True)
        await until(lambda: two.held("old") == two.held("new") == 5)
        assert set(new.engine.loads) == {5} and set(old.engine.loads) == {7, 5}
        await two.publish(6)
        await until(lambda: two.held("old") == two.held("new") == 6)
        for worker in (old, new):
            await worker.leave()
    await store.close()
    await server.stop(None)


async def test_a_mismatch_ends_the_worker_also_if_its_trainer_is_restarted_meanwhile():
    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        bad = member(settings, one.address, engine=(engine := Counting(5)))

        async def load(version: WeightVersion) -> Loaded:
            one.fleet.incarnation = "another"
            await bad.register()
            raise WeightsMismatchError("a canary died")

        engine.load = load
        with pytest.raises(WeightsMismatchError, match="a canary died"):
            await bad.live()
        assert bad.quarantine == "a canary died"
        await bad.leave()
