"""Processes that answer lines of JSON: large ones, late ones, and what is told of their end."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from rlax_plugin.base.processes.asked import FROM_OUTSIDE, AskedProcess, EndedError, with_this_path


@pytest.fixture
def process() -> Iterator[AskedProcess]:
    found = AskedProcess(
        "asked_echo", environment=with_this_path(), keeps_log=True, leads_session=True
    )
    yield found
    found.close()


def sent(process: AskedProcess, **message: Any) -> None:
    process.send(json.dumps(message).encode() + b"\n")


def received(process: AskedProcess) -> Any:
    return json.loads(process.receive(60))


def test_a_line_larger_than_the_pipes_comes_back_whole(process: AskedProcess) -> None:
    text = "x" * (1 << 20)
    sent(process, text=text)
    assert received(process) == {"text": text}


def test_two_lines_are_answered_in_order(process: AskedProcess) -> None:
    sent(process, number=1)
    sent(process, number=2)
    assert [received(process)["number"] for _ in range(2)] == [1, 2]


def test_a_late_answer_is_still_the_next_one(process: AskedProcess) -> None:
    sent(process, sleep=0.5)
    with pytest.raises(TimeoutError):
        process.receive(0.0)
    assert received(process) == {"sleep": 0.5}


def test_a_line_without_an_end_is_too_long(process: AskedProcess) -> None:
    sent(process, text="x" * (1 << 20))
    with pytest.raises(OverflowError):
        process.receive(60, most_bytes=1 << 17)


@pytest.mark.parametrize(
    ("message", "begun", "status"),
    [
        ({"begin": '{"half'}, b'{"half', 3),
        ({"signal": signal.SIGKILL}, b"", -signal.SIGKILL),
        ({"signal": signal.SIGXCPU}, b"", -signal.SIGXCPU),
    ],
)
def test_an_end_tells_what_was_begun_the_status_and_the_last_words(
    process: AskedProcess, message: dict[str, Any], begun: bytes, status: int
) -> None:
    sent(process, print="out of paper", **message)
    with pytest.raises(EndedError) as caught:
        process.receive(60)
    ending = process.ending(60)
    assert (caught.value.begun, ending.status) == (begun, status)
    assert ending.said == "out of paper"
    assert (-ending.status in FROM_OUTSIDE) == (status == -signal.SIGKILL)


def test_what_it_has_started_ends_with_it(process: AskedProcess) -> None:
    sent(process, start=True)
    started = psutil.Process(received(process)["pid"])
    process.close()
    assert started.wait(60) is not None or not started.is_running()


def test_one_that_is_not_held_any_more_ends() -> None:
    process = AskedProcess("asked_echo", environment=with_this_path())
    sent(process, number=1)
    assert received(process) == {"number": 1}
    pid = process._process.pid
    del process
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
