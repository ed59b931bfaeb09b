"""What a function with limits may do."""

import os
import time
from importlib.util import find_spec
from typing import Any

_HELD: list[bytearray] = []


def does(what: str, value: Any) -> Any:
    """Does something that is expensive, wrong or fine, and returns the value."""
    if what == "loop":
        while True:
            pass
    elif what == "swallow":
        while True:
            try:
                while True:
                    pass
            except BaseException:  # noqa: BLE001  as libraries do
                pass
    elif what == "c code":
        10**10**10
    elif what == "memory":
        bytearray(1 << 40)
    elif what == "crash":
        os.kill(os.getpid(), 11)
    elif what == "hoard":
        _HELD.append(bytearray(value))
    elif what == "kill once":
        try:
            os.close(os.open(value, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return value
        os.kill(os.getpid(), 9)
    elif what == "raise unreadable":
        raise KeyError(10**5000)
    elif what == "kill":
        os.kill(os.getpid(), value)
    elif what == "wait":
        time.sleep(value)
    elif what == "work":
        end_s = time.process_time() + value
        while time.process_time() < end_s:
            pass
    elif what == "raise":
        raise ValueError(value)
    elif what == "print":
        print(value)
    elif what == "pid":
        return os.getpid()
    elif what == "parent":
        return os.getppid()
    elif what == "finds":
        return find_spec(value) is not None
    return value
