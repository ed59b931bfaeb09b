"""Inside a reward process: jobs that wait, on its event loop: async rewards, and episodes."""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from rlax_plugin.rewards.forms import Form
from rlax_plugin.rewards.main_thread import MainThread, ScoreJob, ScoreJobs, Send
from rlax_plugin.rewards.messages import prompt_from
from rlax_plugin.rewards.playing import ProcessSession, outcome_of
from rlax_plugin.rewards.scoring import Failures, scores_of
from rlax_plugin.rewards.stepping import JOB


class WaitingJobs:
    """The jobs of one event loop; ``take`` is called on it.

    Args:
      environment: plays episodes; None where there is none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        forms: Sequence[Form],
        environment: Any,
        main_thread: MainThread,
        send: Send,
        failures: Failures,
    ):
        self._loop, self._forms, self._environment = loop, forms, environment
        self._main_thread, self._send, self._failures = main_thread, send, failures
        self._jobs = ScoreJobs()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, ProcessSession] = {}

    def take(self, line: bytes) -> None:
        """A job, or something that concerns one."""
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
            self._begin(job, self._score(job, self._jobs.read(message)))

    def _begin(self, job: int, coroutine: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        context.run(JOB.set, job)
        task = self._tasks[job] = context.run(self._loop.create_task, coroutine)
        # One that is cancelled before its first step says nothing itself.
        task.add_done_callback(lambda _: self._end(job, {"error": "it was cancelled"}))

    def _end(self, job: int, message: Mapping[str, Any]) -> None:
        if self._tasks.pop(job, None) is not None:
            self._send({"job": job, **message})

    async def _score(self, job: int, read: ScoreJob) -> None:
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

        scores = await scores_of(self._forms, *read, call=call, at=at, failures=self._failures)
        self._end(job, {"scores": scores})

    async def _play(self, job: int, message: Mapping[str, Any]) -> None:
        prompt = prompt_from(message["prompt"])
        session = self._sessions[job] = ProcessSession(
            message, lambda question: self._send({"job": job, **question})
        )
        try:
            outcome = await outcome_of(self._environment, prompt, session)
        # As with rewards, a failure is data.
        except BaseException as error:  # noqa: BLE001
            said = self._failures("an environment", prompt.id, error)
            self._end(job, {"error": said})
        else:
            self._end(job, {"outcome": outcome})
        finally:
            del self._sessions[job]
