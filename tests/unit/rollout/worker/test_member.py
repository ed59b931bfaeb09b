"""A worker as a member of a run: the weights that it holds are those of one trainer process."""

import asyncio
from dataclasses import replace

import doors
import numpy as np
import pytest
from worker_harness import Counting, Trainer, Worker, member, section, trainer, until

from rlax_plugin.base.errors import WeightsMismatchError, WeightsUnreadableError
from rlax_plugin.base.types import WeightVersion
from rlax_plugin.config.rollouts import Staleness
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.rollout.worker.member import Member
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.client import ParameterServerClient
from rlax_plugin.weights.memory_copies import THIS_PROCESS, OwnArrays, read


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
        follows = asyncio.ensure_future(worker.follow(client))  # the new trainer's, of less number
        await one.publish(2, restart=True)
        await worker.register()
        await until(lambda: worker.holds_weights)
        assert engine.version == 2
        follows.cancel()
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


class Own(Counting):
    """An engine that takes the trainer's arrays, and finds version 1 as ``problem`` says."""

    reads_memory, problem, tried = True, None, 0

    async def load(self, version: WeightVersion) -> Loaded:
        if (memory := version.parts[0].memory) is not None:
            self.tried += 1
            read(memory, version.parts[0].tensors)
            if self.problem is not None:
                raise self.problem
        return await super().load(version)


def offered(number: int) -> WeightVersion:
    """A version that no file has."""
    copy = OwnArrays.give({"w": np.zeros(1, np.float32)}, number)
    (part,) = (version := make_version(number, "/w/never")).parts
    return replace(version, parts=(replace(part, memory=copy),))


@pytest.mark.parametrize(
    ("problem", "words", "quarantined"),
    [
        (WeightsMismatchError("one bit differs"), "one bit differs", True),
        (
            WeightsUnreadableError("RESOURCE_EXHAUSTED"),
            "version 1: the trainer's arrays cannot be used: RESOURCE_EXHAUSTED",
            False,
        ),
    ],
)
async def test_the_trainer_s_own_arrays_that_cannot_be_used_end_their_worker(
    problem, words, quarantined
):
    engine = Own(5)
    engine.problem = problem
    async with trainer(section()) as one:
        worker = member(section(), one.address, engine=engine, memory=THIS_PROCESS)
        lives = asyncio.ensure_future(worker.live())
        await one.publish(0)
        await until(lambda: one.held("w") == 0)
        await one.parameters.offer(offered(1), inside=True)
        one.fleet.newest.number = 1
        with pytest.raises(type(problem), match=words):
            await asyncio.wait_for(lives, 30)
        assert bool(worker.quarantine) == quarantined
        await worker.leave()
    OwnArrays.forget()


async def test_arrays_that_the_next_version_has_replaced_are_left_for_it():
    engine = Own(5)
    async with trainer(section()) as one:
        worker = member(section(), one.address, engine=engine, memory=THIS_PROCESS)
        lives = asyncio.ensure_future(worker.live())
        await one.publish(0)
        await until(lambda: one.held("w") == 0)
        first, second = offered(1), offered(2)
        await one.parameters.offer(first, inside=True)
        one.fleet.newest.number = 1
        await until(lambda: engine.tried)
        assert one.held("w") == 0 and not lives.done()
        await one.parameters.offer(second, inside=True)
        one.fleet.newest.number = 2
        await until(lambda: one.held("w") == 2)
        lives.cancel()
        await asyncio.wait({lives})
        await worker.leave()
    OwnArrays.forget()
