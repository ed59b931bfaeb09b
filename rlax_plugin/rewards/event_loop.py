"""Inside a reward process: the event loop for jobs that wait, async rewards and episodes.

It records the job of each step, task by task: many jobs share the loop, and if one of them blocks
it or ends the process, the trainer has to find out which. Tasks that a job starts count as the
job's.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlax_plugin.rewards.forms import Form, reweighted
from rlax_plugin.rewards.main_thread import Asked, JobReader, MainThread, Send
from rlax_plugin.rewards.messages import prompt_from
from rlax_plugin.rewards.process_session import ProcessSession, outcome_of
from rlax_plugin.rewards.scoring import Failures, scores_of
from rlax_plugin.rewards.witness import Witness

_JOB: contextvars.ContextVar[int] = contextvars.ContextVar("job", default=0)
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
    """Returns a new event loop on its own thread."""
    loop = asyncio.new_event_loop()

    def task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        if job := _JOB.get():
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


class WaitingJobs:
    """The jobs of one event loop; ``take`` is called on it.

    Args:
      loop: the event loop.
      forms: the rewards.
      environment: plays episodes; None if there is none.
      main_thread: runs functions that are not async.
      send: sends a message to the trainer.
      failures: formats exceptions.
      reward_limit: limit of the environment's reward for a turn.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        forms: Sequence[Form],
        environment: Any,
        main_thread: MainThread,
        send: Send,
        failures: Failures,
        *,
        reward_limit: float,
    ):
        self._loop, self._forms, self._environment = loop, forms, environment
        self._main_thread, self._send, self._failures = main_thread, send, failures
        self._reward_limit = reward_limit
        self._jobs = JobReader()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, ProcessSession] = {}

    def take(self, line: bytes) -> None:
        """Starts a job, or passes a message on to a job."""
        message = json.loads(line)
        job = message["job"]
        if "cancel" in message:
            if (task := self._tasks.get(job)) is not None:
                self._send({"job": job, "cancelling": True})
                task.cancel()
        elif "call" in message:
            if (session := self._sessions.get(job)) is not None:
                session.told(message)
        elif "play" in message:
            self._begin(job, self._play(job, message["play"]))
        else:
            forms = reweighted(self._forms, message.get("weights"))
            self._begin(job, self._score(job, forms, self._jobs.read(message)))

    def _begin(self, job: int, coroutine: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        context.run(_JOB.set, job)
        task = self._tasks[job] = context.run(self._loop.create_task, coroutine)
        # One that is cancelled before its first step says nothing itself.
        task.add_done_callback(lambda _: self._end(job, {"error": "it was cancelled"}))

    def _end(self, job: int, message: Mapping[str, Any]) -> None:
        if self._tasks.pop(job, None) is not None:
            self._send({"job": job, **message})

    async def _score(self, job: int, forms: Sequence[Form], asked: Asked) -> None:
        number = 0

        def at(reward: int) -> None:
            nonlocal number
            number = reward
            if number:
                self._send({"job": job, "at": number})

        async def call(form: Form, arguments: tuple[Any, ...]) -> Any:
            if form.waits:
                return await form.method(*arguments)
            return await self._main_thread.call(job, number, form, arguments)

        scores = await scores_of(forms, *asked, call=call, at=at, failures=self._failures)
        self._end(job, {"scores": scores})

    async def _play(self, job: int, message: Mapping[str, Any]) -> None:
        prompt = prompt_from(message["prompt"])
        session = self._sessions[job] = ProcessSession(
            message, lambda question: self._send({"job": job, **question})
        )
        try:
            outcome = await outcome_of(self._environment, prompt, session, self._reward_limit)
        # As with rewards, a failure is data.
        except BaseException as error:  # noqa: BLE001
            said = self._failures("an environment", prompt.id, error)
            self._end(job, {"error": f"rlax.environment: {said}"})
        else:
            self._end(job, {"outcome": outcome})
        finally:
            del self._sessions[job]
