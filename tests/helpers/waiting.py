"""Waiting for something that a test cannot be told of, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 120.0
_LOOK_S = 0.002  # between two looks


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Returns once a condition holds; the event loop runs meanwhile.

    Args:
      what: for the message if it never does.
    """
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what or "what is waited for does not happen"
        await asyncio.sleep(_LOOK_S)


def wait_until(
    condition: Callable[[], object], what: str = "", *, limit_s: float = LIMIT_S
) -> None:
    """``eventually`` without an event loop."""
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, what or "what is waited for does not happen"
        time.sleep(_LOOK_S)


async def turns(count: int = 50) -> None:
    """Everything on the event loop has had so many turns; what waits for nothing else is done."""
    for _ in range(count):
        await asyncio.sleep(0)
