"""Inside a reward process: the main thread, on which functions run one at a time."""

from __future__ import annotations

import asyncio
import json
import queue
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from rlax_plugin.rewards.forms import Form, reweighted
from rlax_plugin.rewards.messages import episode_from, prompt_from
from rlax_plugin.rewards.scoring import Failures, scores_of
from rlax_plugin.rewards.witness import Witness
from rlax_plugin.types import Episode, Prompt

Send = Callable[[Mapping[str, Any]], None]
Asked = tuple[Prompt, list[Episode], list[list[int]]]
"""A prompt, its episodes, and the number of sampled tokens in each of their turns."""


class JobReader:
    """Reads the samples to score; a prompt is sent with the first of its samples only."""

    def __init__(self) -> None:
        self._prompt: Prompt | None = None

    def read(self, message: Mapping[str, Any]) -> Asked:
        if "prompt" in message:
            self._prompt = prompt_from(message["prompt"])
        assert self._prompt is not None
        prompt = self._prompt
        episodes = [episode_from(one, prompt) for one in message["episodes"]]
        return prompt, episodes, [one["lengths"] for one in message["episodes"]]


class MainThread:
    """The queue of work for the main thread."""

    def __init__(self, send: Send, witness: Witness, failures: Failures):
        self._send, self._witness, self._failures = send, witness, failures
        self._work: queue.SimpleQueue[Callable[[], None] | Sequence[bytes]] = queue.SimpleQueue()
        self._jobs = JobReader()
        self._since_s: float | None = None  # of the job that runs

    @property
    def busy_s(self) -> float:
        """The seconds since the present job began; 0: none runs."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def take(self, lines: Sequence[bytes]) -> None:
        """Adds jobs without async rewards to the queue."""
        self._work.put(lines)

    async def call(self, job: int, number: int, form: Form, arguments: tuple[Any, ...]) -> Any:
        """Calls a function that a job on the event loop needs.

        The trainer learns when the call runs, as waiting for it does not count as the job's time. A
        running call cannot be cancelled; the trainer then ends the process.
        """
        future: Future[Any] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                self._send({"job": job, "runs": True})
                self._witness.reward = number
                try:
                    future.set_result(form.method(*arguments))
                except BaseException as error:  # noqa: BLE001  it is raised where it is awaited
                    future.set_exception(_Raised(error))

        self._send({"job": job, "runs": False})
        self._work.put(work)
        waiting = asyncio.wrap_future(future)
        while not waiting.done():
            try:
                await asyncio.wait({waiting})
            except asyncio.CancelledError:
                if future.cancel():
                    raise
        try:
            return waiting.result()
        except _Raised as raised:
            raise raised.error from None

    def run(self, forms: Sequence[Form]) -> None:
        """Works until the process ends."""
        while True:
            self._since_s = None
            work = self._work.get()
            self._since_s = time.monotonic()
            if callable(work):
                work()
                continue
            for line in work:
                self._since_s = time.monotonic()
                message = json.loads(line)
                self._send({"job": message["job"], "scores": _now(self._scores(message, forms))})

    def _scores(
        self, message: Mapping[str, Any], forms: Sequence[Form]
    ) -> Coroutine[Any, Any, list[dict[str, Any]]]:
        async def call(form: Form, arguments: tuple[Any, ...]) -> Any:
            return form.method(*arguments)

        def at(number: int) -> None:
            self._witness.reward = number

        read = self._jobs.read(message)
        forms = reweighted(forms, message.get("weights"))
        return scores_of(forms, *read, call=call, at=at, failures=self._failures)


class _Raised(Exception):
    """Carries a function's exception, as a StopIteration or SystemExit would break a future."""

    def __init__(self, error: BaseException):
        super().__init__()
        self.error = error


def _now[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a job without an async reward has waited")
