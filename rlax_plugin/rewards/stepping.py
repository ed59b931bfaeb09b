"""Inside a reward process: an event loop that says whose step it runs, task by task.

Many jobs share one loop. Where one of them blocks it, or ends the process, the trainer has to know
which: the others have done nothing. Tasks that a job starts are the job's as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlax_plugin.rewards.witness import Witness

JOB: contextvars.ContextVar[int] = contextvars.ContextVar("job", default=0)
_THREADS = 256  # of ``asyncio.to_thread``: some may hang for good


class _Steps:
    """Runs a coroutine step by step, each under the number of its job."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], job: int, witness: Witness):
        self._coroutine, self._job, self._witness = coroutine, job, witness

    def __await__(self) -> Generator[Any, Any, Any]:
        witness, inner = self._witness, self._coroutine
        error: BaseException | None = None
        while True:
            witness.job = self._job
            try:
                waits_for = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            finally:
                witness.job = 0
            error = None
            try:
                yield waits_for
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as raised:  # noqa: BLE001  such as a cancellation: it is the inner one's
                error = raised


async def _stepped(steps: _Steps) -> Any:
    return await steps


def loop_with(witness: Witness) -> asyncio.AbstractEventLoop:
    """A new event loop on a thread of its own."""
    loop = asyncio.new_event_loop()

    def task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if job := JOB.get():
            coroutine = _stepped(_Steps(coroutine, job, witness))
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(task)
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "reward"))

    def run() -> None:
        asyncio.set_event_loop(loop)
        while True:
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001  sys.exit in a task ends ``run_forever``
                loop.call_exception_handler({"message": "a task ended", "exception": error})

    threading.Thread(target=run, name="event loop", daemon=True).start()
    return loop
