"""Waiting for something that a test cannot be told of, with a deadline."""

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 60.0
_LOOK_S = 0.002  # between two looks


async def eventually[T](look: Callable[[], T], what: str = "", *, limit_s: float = LIMIT_S) -> T:
    """Returns the first true value that ``look`` returns; the event loop runs meanwhile.

    A test that goes on with this value, rather than to look again, sees what it waited for.

    Args:
      what: for the message if there never is one; it also has the value that was seen last.
    """
    end_s = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < end_s, _late(what, limit_s, seen)
        await asyncio.sleep(_LOOK_S)
    return seen


def wait_until[T](look: Callable[[], T], what: str = "", *, limit_s: float = LIMIT_S) -> T:
    """``eventually`` without an event loop."""
    end_s = time.monotonic() + limit_s
    while not (seen := look()):
        assert time.monotonic() < end_s, _late(what, limit_s, seen)
        time.sleep(_LOOK_S)
    return seen


def _late(what: str, limit_s: float, seen: object) -> str:
    return f"{what or 'what is waited for'} is not there after {limit_s:g} s; last seen: {seen!r}"


async def turns(count: int = 50) -> None:
    """Everything on the event loop has had so many turns; what waits for nothing else is done."""
    for _ in range(count):
        await asyncio.sleep(0)
