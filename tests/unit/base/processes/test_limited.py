"""Functions with limits: the system ends them wherever they are, and the next call works."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from rlax_plugin.api import DeadlineError, Ending, LimitedFunction, OverLimitError, RlaxError

MIB = 1 << 20


@pytest.fixture(scope="module")
def limited() -> Iterator[LimitedFunction]:
    found = LimitedFunction("limited_tasks:does", cpu_s=0.2, wait_s=60.0, memory_bytes=256 * MIB)
    yield found
    found.close()


@pytest.mark.parametrize(
    ("what", "said", "ending"),
    [
        ("loop", "more than 0.2 s of CPU time", Ending.OVER_TIME),
        ("swallow", "more than 0.2 s of CPU time", Ending.OVER_TIME),
        ("c code", "more than 0.2 s of CPU time", Ending.OVER_TIME),
        ("memory", f"more than {256 * MIB} bytes", Ending.OVER_MEMORY),
        ("crash", "crashed with SIGSEGV", Ending.CRASHED),
    ],
)
def test_what_is_over_a_limit_says_so_and_the_next_call_works(limited, what, said, ending):
    for _ in range(2):
        with pytest.raises(OverLimitError, match=said) as error:
            limited(what, 0)
        assert error.value.ending == ending
        assert limited("echo", [1, "\ud800", {"a": None}]) == [1, "\ud800", {"a": None}]


def test_time_in_which_it_waits_does_not_count(limited):
    assert limited("wait", 0.4) == 0.4


def test_each_call_has_the_whole_time(limited):
    assert [limited("work", 0.12) for _ in range(4)] == [0.12] * 4


def test_what_it_raises_and_prints(capfd):
    with closing(LimitedFunction("limited_tasks:does", cpu_s=5.0, wait_s=60.0)) as limited:
        with pytest.raises(RlaxError, match="ValueError: no such number") as error:
            limited("raise", "no such number")
        assert not isinstance(error.value, OverLimitError)
        assert limited("print", "not an answer") == "not an answer"
    assert "not an answer" in capfd.readouterr().err


def test_calls_of_several_threads_and_long_arguments(limited):
    texts = [str(n) * 100_000 for n in range(6)]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(lambda text: limited("echo", text), texts)) == texts


def test_one_that_is_killed_from_outside_is_not_to_blame(limited):
    with pytest.raises(RlaxError, match="was ended from outside") as error:
        limited("kill", signal.SIGKILL)
    assert not isinstance(error.value, OverLimitError)
    assert limited("echo", 1) == 1


def test_a_call_whose_process_is_killed_once_is_tried_again(limited, tmp_path):
    place = str(tmp_path / "was killed")
    assert limited("kill once", place) == place


def test_what_earlier_calls_hold_costs_no_later_one_its_memory():
    limits = {"cpu_s": 5.0, "wait_s": 60.0, "memory_bytes": 64 * MIB}
    sizes = [25 * MIB] * 5
    with closing(LimitedFunction("limited_tasks:does", **limits)) as limited:
        assert [limited("hoard", size) for size in sizes] == sizes
        with pytest.raises(OverLimitError, match=f"more than {64 * MIB} bytes"):
            limited("hoard", 75 * MIB)
        assert limited("hoard", 50 * MIB) == 50 * MIB


def test_an_exception_that_cannot_be_shown_is_the_one_of_the_function(limited):
    with pytest.raises(RlaxError, match="KeyError, which cannot be shown: ValueError"):
        limited("raise unreadable", 0)


def test_a_ctrl_c_in_the_terminal_ends_no_call(limited):
    worker_and_keeper = [limited("parent", 0), limited("pid", 0)]
    for one in worker_and_keeper:
        os.kill(one, signal.SIGINT)
    assert [limited("parent", 0), limited("pid", 0)] == worker_and_keeper


def test_deadlines_and_a_process_that_is_gone():
    with closing(LimitedFunction("limited_tasks:does", cpu_s=5.0, wait_s=60.0)) as limited:
        worker = limited("pid", 0)
        limited._wait_s = 0.3
        with pytest.raises(DeadlineError, match="reward_s"):
            limited("wait", 600)
        os.kill(worker, signal.SIGKILL)  # only its parent has been ended: it would sleep on
        limited._wait_s = 60.0
        assert limited("echo", 1) == 1  # by another process
        os.kill(limited("parent", 0), signal.SIGKILL)
        said = "the process of limited_tasks:does was ended from outsi"
        with pytest.raises(RlaxError, match=said):
            limited("kill", signal.SIGKILL)  # at first there is nobody to say so
        assert limited("echo", 2) == 2


def test_a_function_that_is_not_there():
    limited = LimitedFunction("limited_tasks:is_missing", cpu_s=1.0, wait_s=60.0)
    said = "process of limited_tasks:is_missing has ended"
    with closing(limited), pytest.raises(RlaxError, match=said):
        limited("echo", 1)
