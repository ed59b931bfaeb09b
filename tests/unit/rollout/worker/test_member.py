"""A worker as a member of a run: the weights that it holds are those of one trainer process."""

import asyncio

import doors
from worker_harness import Counting, Trainer, Worker, member, section, trainer, until

from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config.rollouts import Staleness
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.rollout.worker.member import Member
from rlax_plugin.weights.client import ParameterServerClient


class Overtaken(Counting):
    """While it loads version 8, its worker registers with another process of the trainer."""

    trainer: Trainer
    worker: Member

    async def load(self, version: WeightVersion) -> Loaded:
        if version.version == 8:
            self.trainer.fleet.incarnation = "another"
            await self.worker.register()
        return await super().load(version)


async def test_a_load_that_a_new_trainer_process_overtakes_counts_for_nothing():
    engine = Overtaken(5)
    async with trainer(section()) as one:
        worker = member(section(), one.address, engine=engine)
        engine.trainer, engine.worker = one, worker
        await worker.register()
        client = ParameterServerClient(one.address, doors.SECRETS.of_worker, 60.0)
        watches = asyncio.ensure_future(worker._watch(client))
        follows = asyncio.ensure_future(worker.follow(client))
        await one.publish(7)
        await worker.register()  # which tells it of the version
        await until(lambda: worker.holds_weights)
        await worker.register()
        assert worker.holds_weights  # of the same process
        await one.publish(8)
        await asyncio.wait_for(follows, 60)
        assert engine.version == 8 and not worker.holds_weights
        watches.cancel()
        await client.close()
        await worker.leave()


async def test_a_worker_loads_one_of_reload_every_versions():
    bounds = Staleness(reload_every=2, max_staleness=2)
    settings = section().model_copy(update={"staleness": bounds})
    async with trainer(settings) as one:
        await one.publish(0)
        worker = Worker("w", Counting(5), settings, one.address)
        await until(lambda: one.held("w") == 0)
        await one.publish(1)
        await asyncio.sleep(5 * settings.deadlines.heartbeat_s)
        await one.publish(2)
        await until(lambda: one.held("w") == 2)
        assert worker.engine.loads == [0, 2]
        await worker.leave()
