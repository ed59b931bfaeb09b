"""A reward process: scores and plays episodes that arrive as JSON lines on a socket of its own.

Started by ``RewardProcess`` as ``python -m rlax_plugin.run.programs.reward SOCKET WITNESS``, two
file descriptors. It is a separate process so that code that hangs, leaks or crashes costs one
sample and never the run. It leads a session and a process group, which ends with it, so that
processes started by a reward do not outlive it.

Three threads: one reads, the main one calls functions one at a time (signals and many libraries
need the main one), and an event loop runs async rewards and environments, many at a time.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import json
import math
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlax_plugin.base.endings import Ending, ending_of
from rlax_plugin.base.errors import PluginError
from rlax_plugin.base.liveness.marks import announced
from rlax_plugin.base.liveness.watchdog import STILL_S, Watchdog
from rlax_plugin.base.processes.tree import kill_tree
from rlax_plugin.base.text.harmless import harmless, one_line
from rlax_plugin.base.text.secrets import learn_secrets
from rlax_plugin.base.types import Episode, Prompt, Score
from rlax_plugin.config import Choice, RlaxSection, last_of
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.ports.environment import Answer, EpisodeLimit, Given, Outcome
from rlax_plugin.ports.protocols import BuildContext, EpisodeReward, GroupReward, Reward
from rlax_plugin.reward.functions.calling import ReturnedError
from rlax_plugin.reward.functions.signatures import own_line
from rlax_plugin.reward.messages import (
    LONGEST,
    ON_LOOP,
    Needs,
    Witness,
    answer_from,
    checked,
    checked_metrics,
    episode_from,
    given_to,
    line,
    outcome_to,
    prompt_from,
    score_to,
    within,
)

Takes = Literal["text", "episode", "group"]
Send = Callable[[Mapping[str, Any]], None]
Call = Callable[["Form", tuple[Any, ...]], Awaitable[Any]]

_MOST_TRACEBACKS = 20  # a reward that always fails must not fill the disk
_LONGEST_TRACEBACK = 10_000  # characters, of its end
_THREADS = 256  # of ``asyncio.to_thread``: some may hang for good
_JOB: contextvars.ContextVar[int] = contextvars.ContextVar("job", default=0)


@dataclass(frozen=True, slots=True)
class Form:
    """The call of a reward: its method, arguments and limits.

    Attributes:
      takes: input of the reward: the text of an episode, the episode, or all episodes of a prompt.
      method: function to call with the prompt and this input.
      waits: True if it is an ``async`` function, of which many run at a time.
      weight: weight of its value in the total; see ``RewardChoice``.
      name: name for messages.
      limit: largest absolute value that it may return.
      abstains: True if it may return None for a sample: it gives it no score.
      tokens: True if it sees tokens.
    """

    takes: Takes
    method: Callable[..., Any]
    waits: bool
    weight: float = 1.0
    name: str = "the reward"
    limit: float = math.inf
    abstains: bool = False
    tokens: bool = False

    def arguments(self, prompt: Prompt, episode: Episode) -> tuple[Any, ...]:
        """Returns the arguments for scoring one episode."""
        return prompt, episode.text if self.takes == "text" else episode


def reweighted(forms: Sequence[Form], weights: Sequence[float] | None) -> Sequence[Form]:
    """Returns forms with other weights; None: as they are."""
    if weights is None:
        return forms
    return [replace(form, weight=weight) for form, weight in zip(forms, weights, strict=True)]


def form_of(
    reward: Any, weight: float = 1.0, name: str = "the reward", limit: float = math.inf
) -> Form:
    """Returns the form of a reward, the first of ``score_group``, ``score`` and ``__call__``.

    Raises:
      PluginError: it has none of them.
    """
    takes: Takes
    if isinstance(reward, GroupReward):
        takes, method = "group", reward.score_group
    elif isinstance(reward, EpisodeReward):
        takes, method = "episode", reward.score
    elif isinstance(reward, Reward):
        takes, method = "text", reward
    else:
        reason = "cannot be called, and has neither score_group nor score"
        raise PluginError(f"{name}: a {type(reward).__name__} {reason}")
    abstains = getattr(reward, "abstains", False) is True
    tokens = bool(getattr(reward, "needs_tokens", takes != "text"))
    return Form(takes, method, _waits(method), weight, name, limit, abstains, tokens)


def _waits(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  of an object, it is what is called
    )


def needs_of(forms: Sequence[Form]) -> Needs:
    return Needs(
        group=any(form.takes == "group" for form in forms),
        tokens=any(form.tokens for form in forms),
        waits=any(form.waits for form in forms),
    )


class Failures:
    """Formats exceptions of rewards and environments as one line, and logs each traceback once."""

    def __init__(self) -> None:
        self.shown: set[tuple[str, str, int | None]] = set()  # type, file and line

    def __call__(self, part: str, prompt_id: str, error: BaseException) -> str:
        """Returns an exception in one line; its traceback is in the log.

        Args:
          part: the part that raised it, such as "a reward".
        """
        if isinstance(error, ReturnedError):  # it names the function and its line itself
            self._log(part, prompt_id, (str(error), "", None), str(error))
            return one_line(str(error))
        frames = traceback.extract_tb(error.__traceback__)
        frame = frames[-1] if frames else traceback.FrameSummary("?", 0, "?")
        name = type(error).__name__
        text = _shown(lambda: "".join(traceback.format_exception(error)), name)
        self._log(part, prompt_id, (name, frame.filename, frame.lineno), text)
        shown = _shown(lambda: one_line(f"{name}: {error}"), name)
        if (own := own_line(error)) is not None:
            return f"{shown} ({own[0]}, line {own[1]}, in {one_line(own[2], 100)})"
        return f"{shown} (line {frame.lineno} of {one_line(frame.name, 100)})"

    def _log(self, part: str, prompt_id: str, kind: tuple[str, str, int | None], text: str) -> None:
        if kind not in self.shown and len(self.shown) < _MOST_TRACEBACKS:
            self.shown.add(kind)
            shown = harmless(text[-_LONGEST_TRACEBACK:]).rstrip("\n")
            print(f"{part} failed on prompt {prompt_id}:\n{shown}", file=sys.stderr, flush=True)


def _shown(text_of: Callable[[], str], name: str) -> str:
    """Returns a text about an exception of a class, whose ``__str__`` may raise another one."""
    try:
        return text_of()
    except Exception as error:  # noqa: BLE001  code of the reward, which may raise anything
        return f"{name}, which cannot be shown: {type(error).__name__}"


class _Sum:
    """The combined values of several rewards for one episode, or the error of one of them."""

    def __init__(self, lengths: Sequence[int], text_of: Callable[[BaseException], str]):
        self._lengths, self._text_of = lengths, text_of
        self._parts: list[float] = []
        self._metrics: dict[str, float] = {}
        self._tokens: list[np.ndarray] = []
        self._abstains = True
        self.error, self._failed = "", Ending.REWARD_FAILED
        self._ending: Ending | None = None  # the first one that a reward has given

    def fail(self, error: BaseException, name: str) -> None:
        """Keeps the first error, which names the reward."""
        if not self.error:
            text = self._text_of(error)
            self.error = text if not name or name in text else f"{name}: {text}"
            self._failed = ending_of(error, Ending.REWARD_FAILED)

    def add(self, value: Any, form: Form) -> None:
        """Adds the value that a reward has returned, after checking it.

        Parts and metrics are recorded unchanged; token rewards are weighted.
        """
        if value is None and form.abstains:
            self._parts.append(0.0)
            return
        self._abstains = False
        try:
            if not isinstance(value, Score):
                self._parts.append(within(value, form.limit, form.name))
                return
            score = checked(value, self._lengths, form.limit, form.name)
            self._parts.append(score.total)
            self._ending = self._ending or score.ending
            for name, metric in score.metrics.items():
                self._metrics[name] = self._metrics.get(name, 0.0) + metric
            if score.token_rewards and form.weight:
                before = self._tokens or [np.zeros(length) for length in self._lengths]
                self._tokens = [
                    a + form.weight * b for a, b in zip(before, score.token_rewards, strict=True)
                ]
        except BaseException as error:  # noqa: BLE001  ``__float__`` of the reward's may raise it
            self.fail(error, form.name)

    def shown(self) -> dict[str, Any]:
        """Returns the score or the error as JSON."""
        if self._abstains and self._parts and not self.error:
            self.error = "no reward gave this sample a score: each returned None"
            self._failed = Ending.ABSTAINED
        try:
            metrics = checked_metrics(self._metrics)  # those of several rewards
        except ValueError as error:
            self.fail(error, "")
        if self.error:
            return {"error": self.error, "ending": self._failed}
        return score_to(self._parts, metrics, self._tokens, self._ending)


async def scores_of(
    forms: Sequence[Form],
    prompt: Prompt,
    episodes: Sequence[Episode],
    lengths: Sequence[Sequence[int]],
    *,
    call: Call,
    at: Callable[[int], None],
    failures: Failures,
) -> list[dict[str, Any]]:
    """Returns a score as JSON, or an error, for each episode.

    A reward that fails for an episode ends the scoring of that episode alone; one that sees the
    group fails for all of them.

    Args:
      forms: the rewards.
      prompt: the prompt.
      episodes: its episodes.
      lengths: for each episode, the number of sampled tokens of each turn.
      call: calls a reward.
      at: called with the number of the reward that is called next.
      failures: formats exceptions.
    """

    async def add(form: Form, episode: Episode, total: _Sum) -> None:
        try:
            value = await call(form, form.arguments(prompt, episode))
        # A failure is data here: it travels to the record. sys.exit is one, too.
        except BaseException as error:  # noqa: BLE001
            total.fail(error, form.name)
        else:
            total.add(value, form)

    text_of = partial(failures, "a reward", prompt.id)
    sums = [_Sum(turns, text_of) for turns in lengths]
    for number, form in enumerate(forms):
        left = [(e, s) for e, s in zip(episodes, sums, strict=True) if not s.error]
        if not left:
            break
        at(number)
        if form.takes == "group":
            await _add_group(form, prompt, episodes, sums, call)
        elif form.waits and len(left) > 1:
            await asyncio.gather(*(add(form, *pair) for pair in left))
        else:
            for pair in left:
                await add(form, *pair)
    return [total.shown() for total in sums]


async def _add_group(
    form: Form, prompt: Prompt, episodes: Sequence[Episode], sums: Sequence[_Sum], call: Call
) -> None:
    try:
        values = list(await call(form, (prompt, tuple(episodes))))
        if len(values) != len(episodes):
            raise ValueError(f"it returned {len(values)} scores for {len(episodes)} episodes")
    except BaseException as error:  # noqa: BLE001  as above
        for total in sums:
            total.fail(error, form.name)
    else:
        for total, value in zip(sums, values, strict=True):
            if not total.error:
                total.add(value, form)


class JobReader:
    """Reads the samples to score; a prompt is sent with the first of its samples only."""

    _prompt: Prompt

    def read(self, message: Mapping[str, Any]) -> tuple[Prompt, list[Episode], list[list[int]]]:
        """Returns the prompt, its episodes, and the sampled tokens' number in each turn."""
        if "prompt" in message:
            self._prompt = prompt_from(message["prompt"])
        prompt, episodes = self._prompt, message["episodes"]
        return (
            prompt,
            [episode_from(episode, prompt) for episode in episodes],
            [episode["lengths"] for episode in episodes],
        )


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
            error = raised.error
        raise error  # not from None, which would take its cause, and with it its ending

    def run(self, forms: Sequence[Form]) -> None:
        """Works until the process ends."""
        while True:
            self._since_s = None
            work = self._work.get()
            self._since_s = time.monotonic()
            if callable(work):
                work()
                continue
            for data in work:
                self._since_s = time.monotonic()
                message = json.loads(data)
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


class ProcessSession:
    """A ``Session`` that sends its questions to the trainer.

    Args:
      message: the trainer's message with the state of the episode.
      send: sends a message of this job.
    """

    def __init__(self, message: Mapping[str, Any], send: Send):
        self._send = send
        self._calls = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._state(message)
        sent = message["answer"]
        self._first = self._last = None if sent is None else answer_from(sent)

    def _state(self, message: Mapping[str, Any]) -> None:
        self.turns_left: int = message["turns_left"]
        self.tokens_left: int = message["tokens_left"]

    @property
    def answer(self) -> Answer:
        if self._first is None:
            raise ValueError(
                "there is no first answer: this environment begins its episodes with play"
            )
        return self._first

    @property
    def text(self) -> str:
        """The text of the last answer; "" before the first one."""
        return "" if self._last is None else self._last.text

    async def sample(
        self,
        given: Given,
        trajectory: int = 0,
        *,
        most_tokens: int | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Answer:
        question = {"sample": given_to(given), "trajectory": int(trajectory)}
        if most_tokens is not None:
            question["most_tokens"] = int(most_tokens)
        if tools:
            question["tools"] = [dict(tool) for tool in tools]
        message = await self._ask(question)
        self._state(message)
        self._last = answer = answer_from(message["answer"])
        return answer

    async def begin(self, context: Given) -> int:
        return (await self._ask({"begin": given_to(context)}))["trajectory"]

    async def _ask(self, question: dict[str, Any]) -> Mapping[str, Any]:
        number = next(self._calls)
        question["call"] = number
        try:
            size = len(line(question))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"JSON cannot hold these messages: {error}") from None
        if size > LONGEST:
            raise ValueError(f"{size} bytes are too long for one turn: {LONGEST} are the most")
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(question)
            answer = await asked
        finally:
            del self._asked[number]
        if "limit" in answer:
            raise EpisodeLimit(answer["limit"])
        if "wrong" in answer:
            raise ValueError(answer["wrong"])
        return answer

    def answered(self, message: Mapping[str, Any]) -> None:
        """Handles the trainer's answer to a question."""
        asked = self._asked.get(message["call"])
        if asked is not None and not asked.done():
            asked.set_result(message)


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
      key: config key of the environment, for messages.
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
        key: str,
        reward_limit: float,
    ):
        self._loop, self._forms, self._environment, self._key = loop, forms, environment, key
        self._main_thread, self._send, self._failures = main_thread, send, failures
        self._reward_limit = reward_limit
        self._jobs = JobReader()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._sessions: dict[int, ProcessSession] = {}

    def take(self, data: bytes) -> None:
        """Starts a job, or passes a message on to a job."""
        message = json.loads(data)
        job = message["job"]
        if "cancel" in message:
            if (task := self._tasks.get(job)) is not None:
                self._send({"job": job, "cancelling": True})
                task.cancel()
        elif "call" in message:
            if (session := self._sessions.get(job)) is not None:
                session.answered(message)
        elif "play" in message:
            self._begin(job, self._play(job, message["play"]))
        else:
            forms = reweighted(self._forms, message.get("weights"))
            self._begin(job, self._score(job, forms, *self._jobs.read(message)))

    def _begin(self, job: int, coroutine: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()
        context.run(_JOB.set, job)
        task = self._tasks[job] = context.run(self._loop.create_task, coroutine)
        # One that is cancelled before its first step says nothing itself.
        cancelled = {"error": "it was cancelled", "ending": Ending.REWARD_FAILED}
        task.add_done_callback(lambda _: self._end(job, cancelled))

    def _end(self, job: int, message: Mapping[str, Any]) -> None:
        if self._tasks.pop(job, None) is not None:
            self._send({"job": job, **message})

    async def _score(self, job: int, forms: Sequence[Form], *samples: Any) -> None:
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

        scores = await scores_of(forms, *samples, call=call, at=at, failures=self._failures)
        self._end(job, {"scores": scores})

    async def _play(self, job: int, message: Mapping[str, Any]) -> None:
        prompt = prompt_from(message["prompt"])
        session = self._sessions[job] = ProcessSession(
            message, lambda question: self._send({"job": job, **question})
        )
        try:
            try:
                outcome = await self._environment.play(prompt, session)
            except EpisodeLimit:
                outcome = Outcome(ended="cut")
            shown = outcome_to(outcome, session.text, self._reward_limit)
        # As with rewards, a failure is data.
        except BaseException as error:  # noqa: BLE001
            text = self._failures("an environment", prompt.id, error)
            ending = ending_of(error, Ending.ENVIRONMENT_FAILED)
            self._end(job, {"error": f"{self._key}: {text}", "ending": ending})
        else:
            self._end(job, {"outcome": shown})
        finally:
            del self._sessions[job]


class Connection:
    """The connection to the trainer, for all threads."""

    def __init__(self, descriptor: int):
        # Neither what a reward starts nor what it forks may hold the way on which jobs come.
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        os.register_at_fork(after_in_child=self._let_go)
        self._lock = threading.Lock()
        self._rest = b""

    def receive(self) -> list[bytes]:
        """Waits for lines, and returns all that have come.

        Raises:
          EOFError: the connection has ended.
        """
        while True:
            data = self._socket.recv(1 << 18)
            if not data:
                raise EOFError
            *lines, self._rest = (self._rest + data).split(b"\n")
            if lines:
                return lines

    def _let_go(self) -> None:
        if self._socket.fileno() >= 0:
            os.close(self._socket.detach())

    def send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            self._socket.sendall(line(message))


def _read(connection: Connection, take: Callable[[list[bytes]], None]) -> None:
    try:
        while True:
            take(connection.receive())
    finally:
        # The run is over, however it ended; if it was killed with answers unread, the connection is
        # reset. Neither a reward that hangs stays behind nor what it began.
        kill_tree(os.getpid())


def main(build_part: Callable[[str, Choice, str, BuildContext], Any]) -> None:
    """Serves jobs until the connection ends.

    Args:
      build_part: see ``rlax_plugin.build``.
    """
    descriptor, shared = map(int, sys.argv[1:])
    connection, witness = Connection(descriptor), Witness(shared)
    os.close(shared)
    sys.stdout = sys.stderr  # which holds nothing back: a reward that hangs is killed
    (first,) = connection.receive()  # nothing follows before it is ready
    start = json.loads(first)
    failures = Failures()
    main_thread = MainThread(connection.send, witness, failures)
    waiting: WaitingJobs | None = None

    def take(lines: list[bytes]) -> None:
        if on_main := [data for data in lines if not data.startswith(ON_LOOP)]:
            main_thread.take(on_main)
        for data in lines:
            if data.startswith(ON_LOOP):
                assert waiting is not None  # else no such job is sent
                loop.call_soon_threadsafe(waiting.take, data[len(ON_LOOP) :])

    threading.Thread(target=_read, args=(connection, take), daemon=True).start()
    learn_secrets(start["section"])  # an error is cut here, before the trainer sees it
    section = RlaxSection.model_validate(start["section"])
    context = BuildContext(
        run_dir=Path(start["run_dir"]),
        seed=section.seed,
        section=section,
        config=ResolvedConfig(section, start["maxtext"]),
        functions=start["functions"],
    )
    forms = []
    for number, choice in enumerate(section.rewards):
        key = f"{start['key']}.{number}"
        reward = build_part("reward", choice, key, context)
        name, weight = f"{key} ({choice.metric_name})", last_of(choice.weight)
        forms.append(form_of(reward, weight, name, section.reward_limit))
    needs = needs_of(forms)
    environment, key = None, start["environment"]
    if section.several_turns:
        environment = build_part("environment", section.environment, key, context)
    if needs.waits or environment is not None:
        loop = loop_with(witness)
        waiting = WaitingJobs(
            loop,
            forms,
            environment,
            main_thread,
            connection.send,
            failures,
            key=key,
            reward_limit=section.reward_limit,
        )
    with announced(context.run_dir, "rewards") as mark, Watchdog(mark) as watchdog:
        reward_s = section.deadlines.reward_s
        watchdog.watch("a reward", lambda: main_thread.busy_s, min(STILL_S, reward_s / 2))
        if waiting is not None:
            watchdog.watch_loop("the event loop of rewards and episodes", loop)
        connection.send({"ready": True, **asdict(needs)})
        main_thread.run(forms)
