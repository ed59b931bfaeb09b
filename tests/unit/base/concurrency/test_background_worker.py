"""One thing after the other on a thread, with a bound on what waits."""

import threading
import weakref

import pytest
from waiting import wait_until

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import BacklogError, RlaxError


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


def test_what_has_not_begun_can_be_cancelled_at_the_end() -> None:
    worker, begun, go_on = BackgroundWorker("files", 10), threading.Event(), threading.Event()
    running, waiting = worker.submit(lambda: begun.set() or go_on.wait(60)), worker.submit(int)
    assert begun.wait(60)
    worker.shutdown(cancel_futures=True)
    assert waiting.cancelled() and not running.cancelled()
    go_on.set()
    assert running.result(60)


def test_what_was_worked_on_is_forgotten_before_more_work_comes() -> None:
    class Large:
        pass

    worker, large = BackgroundWorker("writer", 2), Large()
    kept = weakref.ref(large)
    worker.submit(lambda _: None, large).result(60)
    del large
    wait_until(lambda: kept() is None, "the end of what was worked on")
    assert worker.end(60)


def test_it_has_ended_when_end_returns_or_end_says_that_it_has_not() -> None:
    free, threads = threading.Event(), []
    worker = BackgroundWorker("writer", 2)
    worker.submit(lambda: (threads.append(threading.current_thread()), free.wait(60)))
    assert not worker.end(0.05)
    free.set()
    assert worker.end(60)
    assert not threads[0].is_alive()
