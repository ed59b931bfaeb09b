"""Tasks on an event loop whose failures are noticed: the first failure ends the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from rlax_plugin.base.errors import RlaxError

log = logging.getLogger("rlax.controller")

T = TypeVar("T")


class Supervision:
    """Tasks on one event loop, and the first failure of a run, which is stored only here.

    Attributes:
      closing: True if everything is being ended.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None  # by ``watch_loop``
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed = asyncio.Event()
        self._failure: BaseException | None = None
        self.closing = False

    @property
    def failed(self) -> bool:
        """True if there is a failure."""
        return self._failure is not None

    def watch_loop(self) -> None:
        """Treats an error on the running loop that no code waits for as a failure, too."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)

    def _on_loop_error(self, loop: object, what: dict[str, Any]) -> None:
        task = f" ({what['task']})" if "task" in what else ""  # that was destroyed
        error = what.get("exception") or RlaxError(f"{what['message']}{task}")
        if self.closing or isinstance(error, BlockingIOError):  # gRPC's poller: a late wake-up
            log.warning("%s", what["message"], exc_info=what.get("exception"))
        else:
            self.fail(error)

    def check(self) -> None:
        """Raises the first failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Returns a task that ``close`` ends even if no caller awaits it any more."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs work whose failure is a failure of the run."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.fail(error)

        task = self.own(work)
        task.add_done_callback(ended)
        return task

    def fail(self, error: BaseException) -> None:
        """Records the first failure, which callers of ``unless_failed`` then receive."""
        log.error("the run fails: %s", error, exc_info=error)
        if self._failure is None:
            self._failure = error
            self._failed.set()

    def fail_from_thread(self, error: BaseException) -> None:
        """Calls ``fail`` from another thread; does nothing once the loop is closed."""
        if self._loop is None:  # nothing waits yet
            self.fail(error)
            return
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.fail, error)

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of ``work``, or gives up as soon as there is a failure.

        Raises:
          BaseException: the first failure, also if it was long ago.
        """
        running = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            await asyncio.wait({running, failed}, return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            return running.result()
        finally:
            failed.cancel()
            running.cancel()

    async def close(self) -> None:
        """Cancels every task; later failures are only logged."""
        self.closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
