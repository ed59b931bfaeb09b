"""``verdicts.verdict`` for answers that run out of memory, crash, or are interrupted by a kill.

The libraries swallow a MemoryError, so it is counted where it is raised.
"""

from __future__ import annotations

import os
import signal
import sys

from rlax_rewards.verdicts import verdict as computed

_seen = [0]


def _raised(code: object, offset: int, error: BaseException) -> None:
    _seen[0] += isinstance(error, MemoryError)


sys.monitoring.use_tool_id(sys.monitoring.PROFILER_ID, "memory errors")
sys.monitoring.register_callback(sys.monitoring.PROFILER_ID, sys.monitoring.events.RAISE, _raised)
sys.monitoring.set_events(sys.monitoring.PROFILER_ID, sys.monitoring.events.RAISE)


def verdict(reference: str, answer: str | None) -> bool | int:
    """Compares an answer, or returns how many MemoryErrors were raised so far."""
    if reference == "memory errors":
        return _seen[0]
    if answer == "allocates 1":
        bytearray(1 << 40)
    elif answer == "crashes 1":
        os.kill(os.getpid(), signal.SIGABRT)
    elif answer == "is killed 1":
        os.kill(os.getpid(), signal.SIGKILL)
    return computed(reference, answer)
