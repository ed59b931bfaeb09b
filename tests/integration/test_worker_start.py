"""A worker registers with its controller once its engine is ready for any request."""

import asyncio

import pytest
from worker_harness import Counting, Worker, section, trainer, until

from rlax_plugin.base.errors import DeadlineError


class Compiling(Counting):
    """An engine that is prepared once ``compiled`` is set."""

    def __init__(self):
        super().__init__(5)
        self.compiled, self.began = asyncio.Event(), asyncio.Event()

    async def prepare(self):
        self.began.set()
        await self.compiled.wait()


async def test_a_worker_registers_when_its_engine_is_prepared():
    settings = section()
    async with trainer(settings) as one:
        worker = Worker("w", Compiling(), settings, one.address)
        await worker.engine.began.wait()
        await one.publish(0)
        await asyncio.sleep(3 * settings.deadlines.heartbeat_s)
        assert one.fleet.identities.names == set() and worker.engine.loads == []
        worker.engine.compiled.set()
        await until(lambda: one.held("w") == 0)
        await worker.leave()
        assert one.lost == ["w: left"]


async def test_preparing_has_the_deadline_of_the_start():
    settings = section({"startup_s": 0.3})
    async with trainer(settings) as one:
        worker = Worker("w", Compiling(), settings, one.address)
        with pytest.raises(DeadlineError, match=r"compiling.*rlax\.deadlines\.startup_s"):
            await worker.life
        assert one.fleet.identities.names == set()


async def test_a_worker_that_is_told_to_leave_while_it_prepares_ends_at_once():
    settings = section()
    async with trainer(settings) as one:
        worker = Worker("w", Compiling(), settings, one.address)
        await worker.engine.began.wait()
        await worker.leave()
        assert one.fleet.identities.names == set() and one.lost == []
