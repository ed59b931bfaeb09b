"""Threads for blocking work, such as file operations, that never keep the process alive."""

from __future__ import annotations

import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from rlax_plugin.base.errors import BacklogError, RlaxError


def on_daemon[T](work: Callable[[], T], name: str) -> Future[T]:
    """Returns the future of work on a thread of its own, which is abandoned if it hangs."""
    future: Future[T] = Future()
    threading.Thread(target=_fulfil, args=(future, work), name=name, daemon=True).start()
    return future


def _fulfil[T](future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001  raised where the result is awaited
        future.set_exception(error)
    else:
        future.set_result(result)


class BackgroundWorker(Executor):
    """Does one piece of work after the other, on its own thread, with a bounded queue.

    Unlike an executor of the standard library, it cannot keep the process alive. Python waits for
    the threads of such executors when it exits, for as long as a disk or a bucket hangs.

    Args:
      name: name of the thread, for messages.
      most_waiting: further work is rejected: the work is slower than its callers, or hangs.
    """

    def __init__(self, name: str, most_waiting: int):
        self._name, self._most_waiting = name, most_waiting
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[Future[Any]] = deque()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of submitted pieces of work that have not begun."""
        return len(self._waiting)

    def submit[**P, T](self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See ``Executor``; a future that is cancelled before its turn is skipped.

        Raises:
          BacklogError: too much is waiting.
          RlaxError: the thread was told to end.
        """
        if self._ended:
            raise RlaxError(f"{self._name} has ended")
        if self.waiting >= self._most_waiting:
            raise BacklogError(f"{self._name}: {self._most_waiting} pieces of work are waiting")
        return self._put(fn, *args, **kwargs)

    def _put[**P, T](self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            self._waiting.popleft()
            _fulfil(future, functools.partial(fn, *args, **kwargs))

        self._waiting.append(future)
        self._work.put(run)
        return future

    def finish(self, last: Callable[[], object], deadline_s: float) -> bool:
        """Adds a last piece of work, however much is waiting, and calls ``end``."""
        self._put(last)
        return self.end(deadline_s)

    def end(self, deadline_s: float) -> bool:
        """Ends the thread after all submitted work, and waits for it.

        Python aborts a process that exits while such a thread frees arrays of a device.

        Returns:
          True if everything is done in time.
        """
        self.shutdown()
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Ends the thread after all submitted work, or after the present piece of work.

        Args:
          wait: ignored: ``end`` has a deadline.
          cancel_futures: cancels work that has not begun.
        """
        self._ended = True
        if cancel_futures:
            for future in list(self._waiting):
                future.cancel()
        self._work.put(None)

    def _run(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Does one piece of work, and drops all references to it when it returns."""
        work = self._work.get()
        if work is None:
            return False
        work()
        return True
