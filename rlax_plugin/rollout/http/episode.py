"""The policy of one episode over HTTP: a program samples its turns by OpenAI's API.

It runs in the process that plays the episode. Requests become turns of the ``Session``, so that the
controller alone assembles what trains, from the workers' replies. The history that a program sends
is matched to what was sampled (``Conversations``) and encoded here, never in the trainer's process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.text.harmless import one_line, storable
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.checking import stop_strings_of
from rlax_plugin.ports.environment import Answer, EpisodeLimit, Session
from rlax_plugin.ports.protocols import BuildContext, PromptSource
from rlax_plugin.rollout.http.messages import (
    AnswerForm,
    CallForm,
    check_length,
    for_template,
    form_of,
)
from rlax_plugin.rollout.http.policy import Answered, Asked, Choice, Policy, Refused, Told
from rlax_plugin.rollout.http.sessions import Conversations, Turn

if TYPE_CHECKING:
    from rlax_plugin.rpc.transport.http import HttpServer

_LOOPBACK = "127.0.0.1"
_MOST_TEXTS = 4096  # pieces of work that wait for the thread that encodes
_MOST_CHOICES = 32  # of an episode at the same time: half of the questions that the trainer takes
_MOST_LARGE = 4  # episodes that can use up the memory for large requests of all
_EXCERPT = 300  # characters of an error
_OVER = "the episode is over"


@dataclass(frozen=True, slots=True)
class Access:
    """What a program needs to play an episode.

    Attributes:
      base_url: for clients of OpenAI's API; on loopback, so for programs of this machine only.
      api_key: opens this episode alone, until it is over.
      model: id of the model.
    """

    base_url: str
    api_key: str
    model: str
    _policy: EpisodePolicy

    @property
    def used(self) -> bool:
        """True once a program has had a turn sampled, or has tried."""
        return self._policy.used

    @property
    def sampling(self) -> bool:
        """True while the policy samples a turn, which is not the program's time."""
        return self._policy.sampling

    @property
    def failed(self) -> bool:
        """True once a request has failed for which the program is not to blame."""
        return self._policy.has_failed

    @property
    def requests(self) -> Mapping[str, int]:
        """Number of samples by ``rlax_plugin.rollout.http.sessions.Kind``."""
        return {kind: count for kind, count in self._policy.conversations.counts.items()}

    @property
    def in_order(self) -> bool:
        """True if the program knows the order of the answers: they came one by one, and to it.

        False once two were being sampled at the same time, or if one was lost: its client had gone
        and did not ask again, or the answer could not be read.
        """
        return not self._policy.unordered and self._policy.conversations.all_delivered


class EpisodeDoor:
    """Serves the episodes of one process over HTTP, on a port of its own; it starts when needed.

    Args:
      calls: form of the model's calls of tools; "auto": the one that its chat template writes.
      key: config key of ``calls``, for messages.
    """

    def __init__(self, context: BuildContext, calls: CallForm | Literal["auto", "none"], key: str):
        self._context, self._key = context, key
        self._calls: CallForm | Literal["auto", "none"] = calls
        self._policies: dict[bytes, EpisodePolicy] = {}  # by the digest of the key
        self._starting = asyncio.Lock()
        self._read: tuple[PromptSource, AnswerForm] | None = None
        self._started: tuple[HttpServer, Executor] | None = None

    def check(self) -> None:
        """Builds the prompt source, and reads the form of the model's answers.

        Raises:
          ConfigError: the chat template writes calls of tools otherwise than configured.
        """
        if self._read is not None:
            return
        context = self._context
        chosen = context.section.prompt_source
        source: PromptSource = context.part("prompt_source", chosen, "rlax.prompt_source")
        if source.tokenizer is None:
            why = "the prompt source has no tokenizer whose chat template could take tools"
            form = AnswerForm(source.decode, why_no_tools=why)
        else:
            form = form_of(source.tokenizer, self._calls, self._key)
        self._read = source, form

    @asynccontextmanager
    async def open(self, session: Session) -> AsyncIterator[Access]:
        """Lets whoever has the key sample the session's turns; ends requests when it is left.

        Raises:
          ConfigError: see ``check``.
          OSError: no port is free.
        """
        async with self._starting:
            if self._started is None:
                await asyncio.to_thread(self.check)
                self._started = await asyncio.to_thread(self._start)
        assert self._read is not None
        (server, texts), (source, form) = self._started, self._read
        key, name = secrets.token_urlsafe(32), self._context.run_dir.name
        policy = EpisodePolicy(session, self._context.section, source, form, texts, name)
        self._policies[_digest(key)] = policy
        try:
            yield Access(f"http://{_LOOPBACK}:{server.port}/v1", key, name, policy)
        finally:
            del self._policies[_digest(key)]
            await policy.close()

    def _start(self) -> tuple[HttpServer, Executor]:
        from rlax_plugin.rollout.http.app import LIMITS, MOST_HELD_BYTES, HttpDoor  # loads uvicorn
        from rlax_plugin.rpc.transport.http import HttpServer

        def failed(policy: Policy) -> None:
            assert isinstance(policy, EpisodePolicy)
            policy.has_failed = True

        share = MOST_HELD_BYTES // _MOST_LARGE
        door = HttpDoor(self._policy_of, failed=failed, most_of_one=share)
        server = HttpServer(door, _LOOPBACK, 0, LIMITS)
        return server, BackgroundWorker("rlax-http-text", _MOST_TEXTS)

    def _policy_of(self, key: str | None) -> Policy | None:
        return None if key is None else self._policies.get(_digest(key))


class EpisodePolicy:
    """Answers by turns of a session; see ``Policy``. Made on the session's event loop.

    Attributes:
      conversations: of the episode.
      used: see ``Access``.
      unordered: True once two answers were being sampled at the same time, or one was lost here.
      has_failed: see ``Access.failed``.
    """

    def __init__(
        self,
        session: Session,
        section: RlaxSection,
        source: PromptSource,
        form: AnswerForm,
        texts: Executor,
        name: str,
    ):
        self.name, self.conversations, self.used = name, Conversations(), False
        self._session, self._section, self._source = session, section, source
        self._form, self._texts, self._loop = form, texts, asyncio.get_running_loop()
        ends = not section.rollouts.ignore_stop
        self._stop_strings = stop_strings_of(source) if ends else ()
        self._stop_ids = source.stop_ids if ends else ()
        self._sampling: set[asyncio.Task[tuple[np.ndarray, Choice]]] = set()
        self._has_first = self._over = self.unordered = self.has_failed = False

    @property
    def sampling(self) -> bool:
        return bool(self._sampling)

    @property
    def longest(self) -> int:
        return self._section.sequence_tokens

    async def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        self._form.check(tools)
        check_length((*messages, *tools), self._source, self.longest, "messages")
        found = [for_template(message, f"messages[{i}]") for i, message in enumerate(messages)]
        return await self._encoded(lambda: self._source.encode_messages(found, None, tools))

    async def encode(self, text: str) -> list[int]:
        check_length([text], self._source, self.longest, "prompt")
        return await self._encoded(lambda: self._source.encode(text))

    async def pieces(self, tokens: Sequence[int]) -> list[str]:
        source, found = self._source, np.asarray(tokens, np.int32)
        return await self._off_loop(
            lambda: [storable(source.decode(found[i : i + 1])) for i in range(len(found))]
        )

    async def answer(self, asked: Asked, told: Told | None) -> Answered:
        """See ``Policy``. A client that goes does not end what is sampled: it may ask again."""
        answering = asyncio.run_coroutine_threadsafe(self._answer(asked), self._loop)
        return await asyncio.wrap_future(answering)

    async def close(self) -> None:
        """Ends all requests with an error, also those that are yet to come."""
        self._over = True
        for task in self._sampling:
            task.cancel()
        await asyncio.gather(*self._sampling, return_exceptions=True)

    async def _answer(self, asked: Asked) -> Answered:
        try:
            self._check(asked)
            turns = self.conversations.ask(asked, _MOST_CHOICES - len(self._sampling))
        except RecursionError:  # JSON that could be read may be too deep to be compared
            raise Refused("messages or tools are nested too deeply") from None
        for turn in turns:
            if turn.reply is None:
                self.unordered |= bool(self._sampling)
                task = turn.reply = asyncio.ensure_future(self._sampled(turn, asked))
                self._sampling.add(task)
                task.add_done_callback(self._ended)
        try:
            found = await asyncio.gather(*(asyncio.shield(turn.reply) for turn in turns))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # what it waits for was cancelled
                raise Refused(_OVER) from None
            self.conversations.lost(turns)
            raise
        return Answered(found[0][0], tuple(choice for _, choice in found))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._sampling.discard(task)
        if not task.cancelled():
            error = task.exception()  # nobody may wait for it any more
            self.has_failed |= error is not None and not isinstance(error, Refused)

    def _check(self, asked: Asked) -> None:
        """Refuses what the run's config decides and a request would change."""
        if self._over:
            raise Refused(_OVER)
        self.used = True
        self._form.check(asked.tools)
        if asked.n > _MOST_CHOICES:
            reason = f"n {asked.n}: an episode samples at most {_MOST_CHOICES} answers at a time"
            raise Refused(reason, param="n")
        given = asked.given
        if isinstance(given, np.ndarray) and len(given) > self.longest:
            reason = f"prompt: {len(given)} tokens, a trajectory has at most {self.longest}"
            raise Refused(reason, param="prompt", code="context_length_exceeded")
        if isinstance(given, tuple):
            check_length((*given, *asked.tools), self._source, self.longest, "messages")
        rollouts, measured = self._section.rollouts, self._section.evaluation.temperature
        temperature = rollouts.only_temperature
        if asked.temperature is not None and measured not in (None, temperature):
            reason = (
                "temperature: leave it out, because rlax.evaluation.temperature differs from "
                "rlax.rollouts.temperature, and which of them holds is not known here"
            )
            raise Refused(reason, param="temperature")
        run = {"temperature": temperature, "top_p": rollouts.top_p, "top_k": rollouts.top_k}
        for field, own in run.items():
            if (given := getattr(asked, field)) is not None and given != own:
                reason = f"{field} {given:g} is not the run's: leave it out; rlax.rollouts.{field}"
                raise Refused(f"{reason} sets it", param=field)
        if asked.seed is not None:
            raise Refused("seed: each turn has one of the run's (rlax.seed)", param="seed")
        if set(asked.stop) - set(self._stop_strings):
            reason = "stop: only stop strings of the run, which rlax.prompt_source sets"
            raise Refused(reason, param="stop")
        if set(asked.stop_ids) - set(self._stop_ids):
            reason = "stop_token_ids: only stop ids of the run, which rlax.prompt_source sets"
            raise Refused(reason, param="stop_token_ids")

    async def _sampled(self, turn: Turn, asked: Asked) -> tuple[np.ndarray, Choice]:
        """Samples one choice; returns its context, too."""
        answer: Answer | None = None
        try:
            given = np.asarray(await self._given(turn), np.int32)
            before = turn.line.tokens if turn.extends else turn.prefix
            context = np.concatenate([before, given])
            answer = await self._turn(turn, given if turn.extends else context, asked.most_tokens)
            message = None
            if isinstance(asked.given, tuple):
                said = answer.tokens, asked.tools, turn.name, self._stop_strings
                message = await self._off_loop(lambda: self._form.message(*said))
            self.conversations.answered(turn, given, answer.tokens, message)
        except BaseException:
            self.unordered |= answer is not None  # the trainer has it, the program does not
            self.conversations.failed(turn, sampled=answer is not None)
            raise
        rest = answer.text, answer.finish, answer.version, message
        return context, Choice(answer.tokens, answer.logprobs, *rest)

    async def _given(self, turn: Turn) -> Sequence[int] | np.ndarray:
        given, after, tools = turn.given, turn.after, turn.tools
        if isinstance(given, np.ndarray):
            return given
        if isinstance(given, str):
            return await self.encode(given)
        return await self._encoded(lambda: self._source.encode_messages(given, after, tools))

    async def _turn(self, turn: Turn, tokens: np.ndarray, most: int | None) -> Answer:
        line, session = turn.line, self._session
        given, takes_first = tokens.tolist(), not (turn.extends or self._has_first)
        try:
            if takes_first:
                line.number, self._has_first = 0, True
            elif not turn.extends:
                line.number, given = await session.begin(given), []
            assert line.number is not None
            return await session.sample(given, line.number, most_tokens=most)
        except (EpisodeLimit, ValueError) as error:
            if takes_first:
                self._has_first = False
            code = "context_length_exceeded" if isinstance(error, EpisodeLimit) else None
            reason = one_line(str(error), _EXCERPT)
            raise Refused(reason, code=code) from error

    async def _encoded(self, encode: Callable[[], Sequence[int]]) -> list[int]:
        try:
            return [*await self._off_loop(encode)]
        except ValueError as error:
            reason = one_line(str(error), _EXCERPT)
            raise Refused(f"the request cannot be encoded: {reason}") from error

    async def _off_loop[T](self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)


def _digest(key: str) -> bytes:
    return blake2b(key.encode()).digest()
