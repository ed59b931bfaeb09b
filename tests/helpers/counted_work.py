"""Counts what this thread's Python code does, which is the same on every machine."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

_TOOL = sys.monitoring.PROFILER_ID
_EVENTS = sys.monitoring.events


@dataclass
class Work:
    """Calls of Python and C functions, and jumps: each turn of a loop or comprehension is one."""

    calls: int = 0
    jumps: int = 0


@contextlib.contextmanager
def counted() -> Iterator[Work]:
    """Counts the work of this thread within ``with``."""
    work, mine = Work(), threading.get_ident()

    def called(*_: object) -> None:
        work.calls += threading.get_ident() == mine

    def jumped(*_: object) -> None:
        work.jumps += threading.get_ident() == mine

    sys.monitoring.use_tool_id(_TOOL, "counted_work")
    try:
        sys.monitoring.register_callback(_TOOL, _EVENTS.CALL, called)
        sys.monitoring.register_callback(_TOOL, _EVENTS.JUMP, jumped)
        sys.monitoring.set_events(_TOOL, _EVENTS.CALL | _EVENTS.JUMP)
        yield work
    finally:
        sys.monitoring.set_events(_TOOL, 0)
        sys.monitoring.free_tool_id(_TOOL)
