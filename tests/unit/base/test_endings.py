"""The table of endings: that of the page, and how exceptions find their row."""

from __future__ import annotations

import errno
import re
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlax_plugin.api import DeadlineError, Ended, OverLimitError, RlaxError, SandboxError
from rlax_plugin.base.endings import Ending, ending_of

PAGE = Path(__file__).parents[3] / "docs/endings.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w ]+) \| (.+) \|$", re.M)


def test_the_table_of_the_page_is_the_enumeration() -> None:
    of_samples, of_requests = PAGE.read_text().split("\n## Requests\n")
    for text, of_request in ((of_samples, False), (of_requests, True)):
        rows = [(value, cause, trains) for value, cause, trains, _ in ROW.findall(text)]
        expected = [e for e in Ending if e.of_request == of_request]
        assert rows == [(e.value, e.cause, e.trains) for e in expected]


def test_the_policy_alone_causes_what_trains() -> None:
    for ending in Ending:
        assert (ending.trains != "nothing") == (ending.cause == "policy"), ending


def refused() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        urllib.request.urlopen(f"http://127.0.0.1:{closed.getsockname()[1]}", timeout=30)


def full_disk() -> None:
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def wrapped() -> None:
    try:
        full_disk()
    except OSError as error:
        raise ValueError("the cache cannot be written") from error


def in_place_of(error: BaseException) -> Callable[[], None]:
    def code() -> None:
        try:
            raise error
        except BaseException:  # noqa: BLE001  whatever it is
            raise ValueError("the address is not among the known ones") from None

    return code


def in_a_circle() -> None:
    one, other = ValueError("a"), ValueError("b")
    one.__cause__, other.__cause__ = other, one
    raise one


def raises(error: BaseException) -> Callable[[], None]:
    def code() -> None:
        raise error

    return code


FAILED = Ending.ENVIRONMENT_FAILED
wrapping = ExceptionGroup("of one", [ConnectionRefusedError()])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (refused, Ending.SERVER_FAILED),
        (full_disk, Ending.DISK_FULL),
        (wrapped, Ending.DISK_FULL),
        (raises(OSError(errno.EDQUOT, "over quota")), Ending.DISK_FULL),
        (raises(TimeoutError()), Ending.SERVER_FAILED),
        (raises(socket.gaierror(socket.EAI_NONAME, "no such host")), Ending.SERVER_FAILED),
        (raises(OSError(errno.ENETUNREACH, "no route")), Ending.SERVER_FAILED),
        (raises(OSError(errno.EHOSTUNREACH, "no route")), Ending.SERVER_FAILED),
        (raises(ExceptionGroup("of both", [KeyError(1), wrapping])), Ending.SERVER_FAILED),
        (raises(SandboxError("no user namespaces")), Ending.SANDBOX_FAILED),
        (raises(SandboxError("lost", Ending.PROCESS_ENDED)), Ending.PROCESS_ENDED),
        # Whoever lets it pass has not said that the argument was the answer.
        (raises(OverLimitError("too much", Ending.OVER_MEMORY)), FAILED),
        (raises(RlaxError("broken")), FAILED),
        # Deadlines of many kinds pass; that of a reward is judged where it is kept.
        (raises(DeadlineError("importing it", 1.0, "rlax.deadlines.startup_s")), FAILED),
        (in_place_of(ConnectionRefusedError()), FAILED),
        (in_place_of(SandboxError("no user namespaces")), FAILED),
        (raises(FileNotFoundError("x")), FAILED),
        (raises(MemoryError()), FAILED),
        (raises(SystemExit(3)), FAILED),
        (in_a_circle, FAILED),
    ],
)
def test_an_exception_has_an_ending(code: Callable[[], None], expected: Ending) -> None:
    with pytest.raises(BaseException) as raised:
        code()
    assert ending_of(raised.value, FAILED) == expected


@pytest.mark.parametrize(
    ("why", "code", "expected"),
    [
        ("exited", 0, None),
        ("exited", 1, Ending.CRASHED),
        ("signal", -11, Ending.CRASHED),
        ("time", -9, Ending.OVER_TIME),
        ("memory", -9, Ending.OVER_MEMORY),
        ("output", 0, Ending.OVER_OUTPUT),
        ("stopped", -9, None),
    ],
)
def test_code_in_a_sandbox_has_an_ending(why: Any, code: int, expected: Ending | None) -> None:
    assert Ended(why, code, b"", b"").ending == expected
