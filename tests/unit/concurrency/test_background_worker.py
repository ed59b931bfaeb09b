"""One thing after the other on a thread, with a bound on what waits."""

from __future__ import annotations

import threading

import pytest

from rlax_plugin.concurrency.threads import BackgroundWorker
from rlax_plugin.errors import BacklogError, RlaxError


def test_work_beyond_the_bound_is_rejected_and_the_last_piece_is_not() -> None:
    worker, may, done = BackgroundWorker("a disk", most_waiting=2), threading.Event(), []
    begun = threading.Event()

    def first() -> None:
        begun.set()
        assert may.wait(60)
        done.append(0)

    worker.submit(first)
    assert begun.wait(60)
    for number in (1, 2):
        worker.submit(done.append, number)
    assert worker.waiting == 2
    with pytest.raises(BacklogError, match="a disk: 2 pieces of work are waiting"):
        worker.submit(done.append, 3)
    may.set()
    assert worker.finish(lambda: done.append("last"), 60)
    assert done == [0, 1, 2, "last"]
    with pytest.raises(RlaxError, match="a disk has ended"):
        worker.submit(done.append, 4)


def test_a_piece_that_hangs_is_left_behind() -> None:
    worker, never = BackgroundWorker("a disk", most_waiting=9), threading.Event()
    hanging = worker.submit(never.wait)
    behind = worker.submit(int, "7")
    assert not worker.finish(lambda: None, 0.05)
    assert not hanging.done() and not behind.done()
    never.set()
    assert behind.result(60) == 7  # shutdown ends the thread behind what was submitted
