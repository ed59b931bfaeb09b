"""Versions that workers on the trainer's machine load from memory, over real gRPC."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, closing
from dataclasses import replace

import numpy as np
import pytest
from parameter_servers import Deleted, client_of, serving, version
from worker_harness import Counting, Worker, section, trainer, until

from rlax_plugin.base.errors import WeightsError, WeightsMismatchError
from rlax_plugin.base.types import MemoryCopy, WeightVersion
from rlax_plugin.testing.builders import make_version
from rlax_plugin.weights.memory_copies import MemoryCopies, read, this_machine

pytestmark = pytest.mark.skipif(not this_machine(), reason="Linux only")

ARRAYS = {"w": np.zeros((2, 3), np.float16)}


@pytest.fixture
def copies() -> Iterator[MemoryCopies]:
    with closing(MemoryCopies(1000)) as copies:
        yield copies


def offer(copies: MemoryCopies, written: WeightVersion) -> WeightVersion:
    """The same version, with a copy in memory."""
    (part,) = written.parts
    arrays = {name: ARRAYS[name] for name in part.tensors}
    return replace(written, parts=(replace(part, memory=copies.add(arrays)),))


async def test_only_readers_on_this_machine_are_told_of_a_version_before_it_is_written(copies):
    async with (
        serving(Deleted(), published_in=None) as (service, address),
        client_of(address) as near,
        client_of(address) as far,
        aclosing(near.watch(machine=this_machine())) as here,
        aclosing(far.watch(machine=this_machine() + "0")) as there,
    ):
        await service.publish(version(0), restart=True)
        assert await anext(here) == await anext(there) == version(0)
        assert service.watched_here == 1
        offered = offer(copies, version(1))
        await service.offer(offered, inside=False)
        told = await anext(here)
        assert told.in_memory and told.parts[0].memory == offered.parts[0].memory
        assert await near.latest() == version(0)
        with pytest.raises(WeightsError, match="requested version 1; available: 0"):
            async with near.acquire(1):
                pass
        news = asyncio.ensure_future(anext(there))
        await asyncio.sleep(0.05)
        assert not news.done()
        await service.publish(version(1))
        written = await anext(here)
        assert written == await news == version(1) and not written.in_memory
        # One that is written already is not told again.
        await service.publish(version(2))
        assert (await anext(here)).version == (await anext(there)).version == 2


async def test_an_offer_of_an_earlier_trainer_process_is_void(copies):
    async with serving(Deleted(), published_in=None) as (service, address):
        await service.publish(version(0), restart=True)
        await service.offer(offer(copies, version(5)), inside=False)
        await service.publish(version(3), restart=True)
        async with (
            client_of(address) as client,
            aclosing(client.watch(machine=this_machine())) as news,
        ):
            assert await anext(news) == version(3)
            await service.publish(version(4))
            assert await anext(news) == version(4)


async def test_a_trainer_elsewhere_offers_nothing_in_memory():
    async with serving(Deleted()) as (service, address), client_of(address) as client:
        await client.publish(version(0))
        (part,) = version(1).parts
        copied = replace(part, memory=MemoryCopy(1, 0, bytes(16)))
        with pytest.raises(WeightsError, match="version 1 is one in memory of this machine"):
            await client.publish(replace(version(1), parts=(copied,)))
        assert service.latest == version(0)


def plain(number: int) -> WeightVersion:
    """A version without variables, as engines that only count have none."""
    return make_version(number, f"/w/{number}")


class Reading(Counting):
    """An engine that reads copies in memory, and notes where it read each version."""

    reads_memory = True

    def __init__(self):
        super().__init__(5)
        self.sources = []

    async def load(self, version):
        (part,) = version.parts
        self.sources.append((version.version, "memory" if part.memory else "path"))
        if part.memory is not None:
            read(part.memory, part.tensors)
        return await super().load(version)


async def test_a_worker_loads_from_memory_and_without_the_copy_from_the_path(copies):
    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        worker = Worker("w", Reading(), settings, one.address)
        await until(lambda: one.held("w") == 0)

        async def told(number, *, gone=False):
            offered = offer(copies, plain(number))
            if gone:
                copies.close()
            await one.parameters.offer(offered, inside=False)
            one.fleet.newest.number = number

        await told(1)
        await until(lambda: one.held("w") == 1)  # it is not written yet
        await one.parameters.publish(plain(1))
        await told(2, gone=True)
        await until(lambda: worker.engine.sources[-1] == (2, "memory"))
        await asyncio.sleep(0.2)
        assert one.held("w") == 1
        await one.parameters.publish(plain(2))
        await until(lambda: one.held("w") == 2)
        assert worker.engine.sources == [
            (0, "path"), (1, "memory"), (2, "memory"), (2, "path"),
        ]  # fmt: skip
        # Wrong ones: whether this worker is at fault, the files decide.
        worker.engine.faults[3] = WeightsMismatchError("one bit differs")
        await told(3)
        await until(lambda: worker.engine.sources[-1] == (3, "memory"))
        del worker.engine.faults[3]
        await one.parameters.publish(plain(3))
        await until(lambda: one.held("w") == 3)
        assert one.quarantined == [] and one.lost == []


async def test_an_engine_without_the_ability_waits_for_the_files(copies):
    settings = section()
    async with trainer(settings) as one:
        await one.publish(0)
        engine = Reading()
        engine.reads_memory = False
        worker = Worker("w", engine, settings, one.address)
        await until(lambda: one.held("w") == 0)
        await one.parameters.offer(offer(copies, plain(1)), inside=False)
        await asyncio.sleep(0.2)
        await one.parameters.publish(plain(1))
        await until(lambda: one.held("w") == 1)
        assert worker.engine.sources == [(0, "path"), (1, "path")]
