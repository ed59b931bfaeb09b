"""A loading's deadline, which is without the time in which the trainer has the devices."""

import asyncio
import time

import pytest
from part_stubs import EngineStub

from rlax_plugin.rollout.worker.progress import load_within


class Engine(EngineStub):
    """Generates nothing."""

    def health(self) -> dict[str, float]:
        return {}


async def test_the_deadline_of_a_loading_does_not_count_the_trainer_s_time():
    looks, trained = [0], asyncio.Event()

    def paused_s() -> float:
        looks[0] += 1
        if looks[0] == 4:  # the deadline has passed three times, and the step is over
            trained.set()
        return time.monotonic()

    async def loading() -> None:
        await trained.wait()

    within = load_within(Engine(), loading(), 0.02, while_generating=False, paused_s=paused_s)
    await asyncio.wait_for(within, 30)
    assert looks[0] == 4


async def test_a_loading_that_needs_more_than_its_own_time_is_late():
    async def loading() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await load_within(Engine(), loading(), 0.02, while_generating=False, paused_s=lambda: 7.0)
