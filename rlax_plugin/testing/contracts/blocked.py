"""A deadline for code that may block: it runs on a thread that is abandoned after the deadline."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from rlax_plugin.base.concurrency.threads import on_daemon

_THREAD = "check of a part"  # the command line knows it


def within[T](deadline_s: float, work: Callable[[], T], late: Callable[[str], Exception]) -> T:
    """Runs work on a thread of its own, which is abandoned after the deadline.

    Args:
      late: makes the error of work that took too long, from its present line of code.
    """
    threads: list[threading.Thread] = []

    def run() -> T:
        threads.append(threading.current_thread())
        return work()

    future = on_daemon(run, _THREAD)
    try:
        return future.result(deadline_s)
    except TimeoutError:
        if future.done():  # the work itself raised it
            raise
        raise late(_line_of(threads[0])) from None


def _line_of(thread: threading.Thread) -> str:
    """Returns the innermost line of code of a thread outside the standard library."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.extract_stack(frame) if frame else []
    library = Path(threading.__file__).parent
    own = [one for one in lines if Path(one.filename).parent not in (library, library / "asyncio")]
    if not own:
        return "an unknown line"
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].line})"
