"""A worker before it registers: its engine is built, and it says what that is about."""

import asyncio
from typing import Any

import pytest
from part_stubs import EngineStub

from rlax_plugin.base.errors import DeadlineError, WorkerError
from rlax_plugin.config import Deadlines
from rlax_plugin.rollout.worker.joining import prepare


class Engine(EngineStub):
    """An engine that is ready once it is told."""

    def __init__(self) -> None:
        self.ready, self.doing, self.cancelled = asyncio.Event(), "importing", False
        self.error: Exception | None = None

    async def prepare(self) -> None:
        try:
            await self.ready.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error

    def preparing(self) -> str:
        return self.doing


DEADLINES = Deadlines(startup_s=60.0, heartbeat_s=0.01)


def test_each_activity_is_told_once() -> None:
    async def main() -> list[str]:
        engine: Any = Engine()
        told = list[str]()

        async def tell(doing: str) -> None:
            told.append(doing)
            if doing == "compiling":
                engine.ready.set()
            else:
                asyncio.get_running_loop().call_later(0.1, setattr, engine, "doing", "compiling")

        await prepare(engine, DEADLINES, tell)
        return told

    assert asyncio.run(main()) == ["importing", "compiling"]


async def test_an_engine_that_says_nothing_is_waited_for() -> None:
    class Silent(EngineStub):
        async def prepare(self) -> None:
            await asyncio.sleep(0.03)

    async def tell(doing: str) -> None:
        raise AssertionError(doing)

    await prepare(Silent(), DEADLINES, tell)
    await prepare(EngineStub(), DEADLINES, tell)


def test_an_engine_that_is_late_or_fails_is_an_error() -> None:
    async def tell(doing: str) -> None: ...

    async def late() -> None:
        engine: Any = Engine()
        deadlines = Deadlines(startup_s=0.05, heartbeat_s=0.01)
        with pytest.raises(DeadlineError, match=r"rlax\.deadlines\.startup_s"):
            await prepare(engine, deadlines, tell)
        await asyncio.sleep(0)
        assert engine.cancelled

    async def failed() -> None:
        engine: Any = Engine()
        engine.error = WorkerError("no device")
        engine.ready.set()
        with pytest.raises(WorkerError, match="no device"):
            await prepare(engine, DEADLINES, tell)

    asyncio.run(late())
    asyncio.run(failed())
