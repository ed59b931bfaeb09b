"""Ending what was started: in order, each part under a deadline of its own."""

import asyncio
import functools
import threading
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.config import Choice
from rlax_plugin.run.start import running
from rlax_plugin.run.start.running import Closing


async def test_a_part_that_is_late_is_named_and_left_and_the_others_are_ended() -> None:
    ended: list[str] = []
    late: list[str] = []

    async def quick() -> None:
        ended.append("quick")

    async def never() -> None:
        await asyncio.Event().wait()

    undo = Closing(late.append)
    undo.part().callback(ended.append, "first started")
    undo.ends("the launcher", "rlax.launcher", never, 0.05)
    undo.ends("the reward processes", "rlax.rewards", quick, 60.0)
    assert undo.deadline_s == 120.05
    await undo.aclose()
    assert ended == ["quick", "first started"]
    assert late == ["the launcher did not end within 0.05 s (rlax.launcher): it was abandoned"]


def test_the_first_error_of_ending_is_raised_and_the_others_are_logged(caplog) -> None:
    ended: list[str] = []

    def fail(error: Exception) -> None:
        ended.append(str(error))
        raise error

    async def main() -> None:
        undo = Closing(ended.append)
        undo.part().callback(fail, OSError("ends third"))
        undo.part().callback(fail, OSError("ends second"))
        undo.part().callback(fail, RlaxError("ends first"))
        await undo.aclose()

    with pytest.raises(RlaxError, match="ends first"):
        asyncio.run(main())
    assert ended == ["ends first", "ends second", "ends third"]
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"a further part has failed to end: ends {n}" for n in ("second", "third")]


class Tracker:
    def __init__(self, says: str | Exception | None, wait: Callable[[], object]) -> None:
        self.says, self.wait = says, wait

    def log(self, step: int, metrics: object) -> None: ...

    def close(self) -> str | None:
        self.wait()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


def test_trackers_close_side_by_side_and_each_says_what_it_lost(monkeypatch) -> None:
    async def two_have_ended(futures: Collection[asyncio.Future[Any]], timeout: float) -> Any:
        assert timeout == 55.0
        await eventually(lambda: sum(future.done() for future in futures) >= 2)
        return await asyncio.wait(futures, timeout=0)

    monkeypatch.setattr(
        running, "asyncio", SimpleNamespace(wait=two_have_ended, wrap_future=asyncio.wrap_future)
    )
    hangs = threading.Event()
    together = threading.Barrier(2)  # breaks where one is closed after the other
    trackers = [
        Tracker(None, hangs.wait),
        Tracker("tracker b: 3 steps", functools.partial(together.wait, 60)),
        Tracker(OSError("c is gone"), functools.partial(together.wait, 60)),
    ]
    late: list[str] = []

    async def main() -> None:
        undo = Closing(late.append)
        undo.ends_trackers(trackers, [Choice(name=name) for name in "abc"], 55.0)
        await undo.aclose()

    try:
        with pytest.raises(OSError, match="c is gone"):
            asyncio.run(main())
    finally:
        hangs.set()
    first, second = late
    assert first.startswith(
        "tracker a (rlax.trackers.0) did not close within 55 s (rlax.deadlines.close_s)"
    )
    assert second == "tracker b: 3 steps"


def test_what_comes_after_the_result_is_no_failure_if_it_is_late() -> None:
    thread = LoopThread()
    try:
        assert thread.run_last(asyncio.sleep(0)) is True
        assert thread.run_last(asyncio.sleep(60), 0.05) is False
    finally:
        thread.close()
