"""Who is a member of a run, and to which process a name belongs."""

import asyncio

import pytest
from worker_harness import Counting, Worker, member, section, trainer, until

from rlax_plugin.base.errors import ConfigError


async def test_a_name_belongs_to_the_process_that_was_heard_last():
    settings = section()
    async with trainer(settings) as one:
        holder = member(settings, one.address, process="holder")
        newcomer = member(settings, one.address, process="another")
        await holder.register()
        beats = asyncio.ensure_future(holder.heartbeat())
        watch = asyncio.ensure_future(one.fleet.watch())
        with pytest.raises(ConfigError, match=r"--name = 'w': is already used by a worker"):
            await newcomer.register()
        assert one.lost == [] and one.fleet.workers["w"].process == "holder"
        await newcomer.leave()  # which is none of the holder's business
        await holder.register()  # the same process may always register again
        assert one.lost == ["w: registered again"]
        watch.cancel()
        beats.cancel()


async def test_a_restarted_worker_waits_until_its_predecessor_counts_as_lost():
    settings = section()
    async with trainer(settings) as one:
        killed = member(settings, one.address)
        restarted = member(settings, one.address, process="another")
        watch = asyncio.ensure_future(one.fleet.watch())
        await killed.register()  # and was killed: no heartbeat follows
        await restarted.register()
        watch.cancel()
        assert one.fleet.workers["w"].process == "another"
        assert len(one.lost) == 1
        beats = asyncio.ensure_future(restarted.heartbeat())
        with pytest.raises(ConfigError, match="--name"):  # and was only paused
            await killed.heartbeat()
        assert one.fleet.workers["w"].process == "another" and len(one.lost) == 1
        beats.cancel()


async def test_the_error_that_ends_a_worker_is_the_reason_of_its_loss():
    settings, engine = section(), Counting(5)
    engine.faults[1] = MemoryError("std::bad_alloc")
    async with trainer(settings) as one:
        await one.publish(0)
        worker = Worker("a", engine, settings, one.address)
        await until(lambda: one.held("a") == 0)
        await one.publish(1)
        with pytest.raises(MemoryError):
            await worker.life
        assert one.lost == ["a: it ended: MemoryError: std::bad_alloc"]
        assert one.quarantined == []
