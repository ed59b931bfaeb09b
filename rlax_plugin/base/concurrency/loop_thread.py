"""An event loop on a thread of its own, and functions by which other threads wait for its work."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rlax_plugin.base.errors import DeadlineError

log = logging.getLogger("rlax.controller")

T = TypeVar("T")

_CLOSE_S = 60.0  # for ending what was started


def result_within[T](
    work: Coroutine[Any, Any, T],
    loop: asyncio.AbstractEventLoop,
    deadline_s: float | None,
    late: Callable[[float], DeadlineError],
) -> T:
    """Returns the result of ``work`` on another thread's loop; cancels it if the wait ends early.

    Args:
      work: the coroutine.
      loop: the event loop.
      deadline_s: time limit; None: there is none.
      late: given the deadline, makes the error for work that was not done by then.

    Raises:
      DeadlineError: that of ``late``; a ``TimeoutError`` is the work's own.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop is closed, and will never run it
        work.close()
        raise
    try:
        return future.result(deadline_s)
    except TimeoutError:
        if future.done() or deadline_s is None:
            return future.result()  # it has ended just now, or raised the error itself
        raise late(deadline_s) from None
    finally:
        future.cancel()  # no-op once it is done


class LoopThread:
    """An event loop on a thread of its own, so that the main thread is the trainer's."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="controller", daemon=True
        )
        self._thread.start()

    def run(
        self,
        work: Coroutine[Any, Any, T],
        deadline_s: float | None = None,
        what: str = "",
        key: str = "",
    ) -> T:
        """Returns the result of ``work``, which is cancelled if the wait for it ends early.

        Raises:
          DeadlineError: it took too long.
        """
        return result_within(
            work, self.loop, deadline_s, lambda given_s: DeadlineError(what, given_s, key)
        )

    def run_last(self, work: Coroutine[Any, Any, object], deadline_s: float = _CLOSE_S) -> bool:
        """Runs work that follows the result of a run; returns True if it ended in time.

        The result does not depend on it, so being late is not an error.
        """
        try:
            self.run(work, deadline_s, "the end of the run")
        except DeadlineError:
            log.exception("what was started has not ended after %g s", deadline_s)
            return False
        return True

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_CLOSE_S)
        if not self._thread.is_alive():
            self.loop.close()
