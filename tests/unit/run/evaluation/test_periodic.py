"""Evaluations beside training: which are made, which are skipped, and what is told of that."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rlax_plugin.run.evaluation.periodic import PeriodicEvaluation
from rlax_plugin.run.evaluation.result import Evaluated


class Parts:
    """Stands for everything around: evaluator, fleet, parameter server, recorder."""

    training = True

    def __init__(self) -> None:
        self.lacks_pinned_worker = False
        self.may_generate, self.may_record = asyncio.Event(), asyncio.Event()
        self.may_record.set()
        self.generated: list[int] = []
        self.notes: list[str] = []
        self.error: Exception | None = None

    @contextlib.asynccontextmanager
    async def acquire(self, version: int) -> Any:
        yield version

    def pin(self, version: int) -> None: ...

    def unpin(self) -> None:
        self.lacks_pinned_worker = False

    async def run(self, version: int, *, pinned: bool) -> Evaluated:
        assert pinned
        self.generated.append(version)
        await self.may_generate.wait()
        if self.error is not None:
            raise self.error
        return Evaluated(version, {"test": {}})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    def message(self, text: str) -> None:
        self.notes.append(text)

    def estimates(self, title: str, found: Evaluated) -> None: ...

    async def call(self, work: Callable[..., Any], *arguments: Any) -> Any:
        await self.may_record.wait()


def make() -> tuple[PeriodicEvaluation, Parts]:
    parts: Any = Parts()
    periodic = PeriodicEvaluation(
        every=5,
        last_step=100,
        evaluator=parts,
        fleet=parts,
        client=parts,
        recorder=parts,
        files=parts,
        supervision=parts,
        display=parts,
    )
    return periodic, parts


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_that_is_being_recorded_is_not_given_up() -> None:
    periodic, parts = make()
    periodic.published(5)
    await settled()
    parts.may_record.clear()
    parts.may_generate.set()
    await settled()  # its worker is released, its file is being written
    periodic.published(10)
    assert parts.notes == ["evaluation of step 10 is skipped: that of step 5 is still running"]
    parts.may_record.set()
    await settled()
    assert periodic.take_metrics() == {"evaluation/version": 5.0} and periodic.skipped == 1


async def test_one_that_waits_for_a_second_worker_makes_room_for_the_next() -> None:
    periodic, parts = make()
    for version in (5, 7, 10):
        periodic.published(version)
        await settled()
        parts.lacks_pinned_worker = True
    assert parts.generated == [5, 10] and periodic.skipped == 1
    assert parts.notes == ["evaluation of step 5 is skipped: no second worker was ready"]
    await periodic.cancel()
    assert parts.notes[1:] == ["evaluation of step 10 is skipped: the run is stopped"]
    assert periodic.skipped == 2


@pytest.mark.parametrize("error", [KeyError("no answer"), OSError("disk full")])
async def test_training_does_not_depend_on_one(error: Exception) -> None:
    periodic, parts = make()
    parts.error = error
    parts.may_generate.set()
    periodic.published(5)
    await settled()
    assert parts.notes == [f"evaluation of step 5 is skipped: {error!r}"]
    await periodic.finish()
    for version in (10, 100):  # the last step is evaluated once training has ended
        periodic.published(version)
        await settled()
    assert parts.generated == [5, 10]
