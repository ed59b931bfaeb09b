"""The watchdog notices what stands still, and notices that it goes on."""

import asyncio
import ctypes
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from rlax_plugin.base.concurrency.loop_thread import LoopThread
from rlax_plugin.base.liveness.marks import Mark, announced, marks
from rlax_plugin.base.liveness.watchdog import Watchdog

LIMIT_S = 2.0


@pytest.fixture
def watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watchdog]:
    monkeypatch.setattr("rlax_plugin.base.liveness.watchdog._TICK_S", 0.1)
    with announced(tmp_path, "trainer") as mark, Watchdog(mark, LIMIT_S) as dog:
        assert mark is not None
        yield dog


def mark_of(directory: Path) -> Mark:
    return marks(directory)[0]


def test_a_loop_that_is_blocked_is_named_with_its_stacks(tmp_path: Path, watchdog: Watchdog):
    thread, go_on = LoopThread(), threading.Event()

    async def blocks_the_loop() -> None:
        go_on.wait(60)

    before = time.time()
    watchdog.watch_loop("the loop", thread.loop)
    blocked = asyncio.run_coroutine_threadsafe(blocks_the_loop(), thread.loop)
    try:
        ((what, since),) = wait_until(lambda: mark_of(tmp_path).still, "the note")
        assert what == "the loop" and before - 2 * LIMIT_S < since < time.time()
        stacks = Path(mark_of(tmp_path).stacks).read_text()
        assert "the loop stands still" in stacks and "blocks_the_loop" in stacks
        names = dict(mark_of(tmp_path).threads)
        number = next(number for number, name in names.items() if name == "controller")
        assert f"Thread {number} " in stacks  # the number by which stacks name the thread
        go_on.set()
        blocked.result(60)
        wait_until(lambda: not mark_of(tmp_path).still, "the loop moves again")
    finally:
        go_on.set()
        thread.close()


def test_stacks_are_not_written_each_second(tmp_path: Path, watchdog: Watchdog) -> None:
    still_s, looks = 2.1, 0

    def engine() -> float:
        nonlocal looks
        looks += 1
        return still_s

    def written() -> list[str]:
        return re.findall("stands still since (.*) s", Path(mark_of(tmp_path).stacks).read_text())

    watchdog.watch("the engine", engine)
    wait_until(lambda: written() == ["2"], "the first time")
    still_s, before = 8.3, looks  # the next is due when it has stood still four times as long
    wait_until(lambda: looks > before + 5, "several looks")
    assert written() == ["2"]
    still_s = 8.5
    wait_until(lambda: written() == ["2", "8"], "the second time")
    still_s = 0.0
    wait_until(lambda: not mark_of(tmp_path).still, "it moves again")
    still_s = 2.1
    wait_until(lambda: written() == ["2", "8", "2"], "the first time that it stands still again")


def test_the_watchdog_says_that_nothing_ran(caplog, tmp_path, watchdog: Watchdog) -> None:
    looks: list[float] = []
    watchdog.watch("what moves", lambda: looks.append(0.0) or 0.0)
    wait_until(lambda: looks, "a look")
    ctypes.PyDLL(None).usleep(int(2.5e6))  # unlike CDLL, it keeps all other threads waiting
    wait_until(lambda: "this process did not run for " in caplog.text, "the line in the log")
    assert mark_of(tmp_path).still == ()
