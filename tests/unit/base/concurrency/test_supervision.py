"""Failures on an event loop that no code waits for."""

import asyncio
import gc

import pytest

from rlax_plugin.base.concurrency.supervision import Supervision
from rlax_plugin.base.errors import RlaxError


async def test_a_task_that_nothing_holds_is_a_failure_that_names_it() -> None:
    supervision = Supervision()
    supervision.watch_loop()

    async def forgotten() -> None:
        await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(forgotten())
    await asyncio.sleep(0)
    del task
    gc.collect()
    with pytest.raises(RlaxError, match=r"destroyed but it is pending.*forgotten\(\)"):
        supervision.check()
