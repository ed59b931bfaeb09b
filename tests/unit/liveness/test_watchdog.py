"""The watchdog notices what stands still, also if no Python runs, and notices that it goes on."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from rlax_plugin.concurrency.loop_thread import LoopThread
from rlax_plugin.liveness.marks import Mark, announced, marks
from rlax_plugin.liveness.watchdog import Watchdog

LIMIT_S = 2.0


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[Watchdog]:
    with announced(tmp_path, "trainer") as mark, Watchdog(mark, LIMIT_S) as dog:
        assert mark is not None
        yield dog


def mark_of(directory: Path) -> Mark:
    return marks(directory)[0]


def test_a_loop_that_is_blocked_is_named_with_its_stacks(tmp_path: Path, watchdog: Watchdog):
    thread = LoopThread()
    go_on = threading.Event()

    async def blocks_the_loop() -> None:
        go_on.wait(60)

    watchdog.watch_loop("the loop", thread.loop)
    blocked = asyncio.run_coroutine_threadsafe(blocks_the_loop(), thread.loop)
    before = time.time()
    try:
        wait_until(lambda: mark_of(tmp_path).still, "the note")
        ((what, since),) = mark_of(tmp_path).still
        assert what == "the loop" and before - 2 * LIMIT_S < since < time.time()
        stacks = Path(mark_of(tmp_path).stacks).read_text()
        assert "the loop stands still" in stacks and "blocks_the_loop" in stacks
        names = dict(mark_of(tmp_path).threads)
        number = next(number for number, name in names.items() if name == "controller")
        assert f"Thread {number} " in stacks  # the number by which stacks name the thread
    finally:
        go_on.set()
    blocked.result(60)
    wait_until(lambda: not mark_of(tmp_path).still, "the loop moves again")
    thread.close()


def test_stacks_are_not_written_each_second(tmp_path: Path, watchdog: Watchdog) -> None:
    began_s = time.monotonic()
    watchdog.watch("the engine", lambda: time.monotonic() - began_s)
    stacks = Path(mark_of(tmp_path).stacks)
    wait_until(lambda: "the engine stands still" in stacks.read_text(), "the first time")
    time.sleep(2.5)
    first = stacks.read_text().count("stands still")
    assert first == 1  # the next is due when it has stood still four times as long
    wait_until(lambda: stacks.read_text().count("stands still") == 2, "the second time")
    assert time.monotonic() - began_s > 4 * LIMIT_S


def test_code_that_holds_the_interpreter_is_caught(tmp_path: Path, watchdog: Watchdog) -> None:
    time.sleep(1.5)  # so that the watchdog has looked once

    def holds_the_interpreter() -> None:
        ctypes.PyDLL(None).usleep(int(3e6))  # unlike CDLL, it keeps all other threads waiting

    holds_the_interpreter()
    assert "holds_the_interpreter" in Path(mark_of(tmp_path).stacks).read_text()
    assert mark_of(tmp_path).still == ()
