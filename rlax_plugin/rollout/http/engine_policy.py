"""The policy of ``rlax serve RUN``: its engine, through the worker's own service of rollouts."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from rlax_plugin.base.concurrency.threads import BackgroundWorker
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.text.harmless import one_line, storable
from rlax_plugin.base.tokens.chat import Message
from rlax_plugin.base.tokens.stopping import Decode, cut
from rlax_plugin.base.types import Key, Request, Sampled, SamplingParams
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.prompts.checking import (
    stable,
    stop_strings_of,
    whole_tokens,
    worth_decoding,
)
from rlax_plugin.ports.protocols import PromptSource, RolloutEngine
from rlax_plugin.rollout.fleet.links import CallError
from rlax_plugin.rollout.http.messages import AnswerForm, check_length, for_template, form_of
from rlax_plugin.rollout.http.policy import (
    Answered,
    Asked,
    Choice,
    Refused,
    Told,
)
from rlax_plugin.rollout.worker.rollout_service import RolloutService, check

_MOST_UNFINISHED = 1024  # samples of all requests; more are refused
_EXCERPT = 300  # characters of a source's error
_STATUS = {"rejected": 400, "failed": 500, "gone": 503}


class EnginePolicy:
    """Answers by an engine; see ``Policy``. Made on the engine's event loop, asked on any.

    What is slow or untrusted stays off the engine's event loop: texts are encoded and decoded on a
    thread of their own.

    Args:
      service: the worker's, with the engine.
      section: limits, and the settings where a request says nothing.
      make_source: the prompt source, called once, when the first request comes.
      name: see ``Policy``.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        service: RolloutService,
        section: RlaxSection,
        make_source: Callable[[], PromptSource],
        name: str,
    ):
        self.name = name
        self._engine, self._service, self._section = engine, service, section
        self._make_source, self._loop = make_source, asyncio.get_running_loop()
        self._made: PromptSource | None = None
        self._form: AnswerForm  # there once the source is
        self._texts = BackgroundWorker("rlax-http-text", 4 * _MOST_UNFINISHED)
        self._numbers = itertools.count()
        self._unfinished = 0

    @property
    def longest(self) -> int:
        own = self._section.max_context_tokens + self._section.rollouts.max_new_tokens
        return min(own, self._engine.capabilities.context_tokens or own)

    async def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        source = await self._source()
        self._form.check(tools)
        check_length((*messages, *tools), source, self._section.max_context_tokens, "messages")
        found = [for_template(message, f"messages[{i}]") for i, message in enumerate(messages)]
        return await self._encoded(lambda: source.encode_messages(found, None, tools), "messages")

    async def encode(self, text: str) -> list[int]:
        source = await self._source()
        check_length([text], source, self._section.max_context_tokens, "prompt")
        return await self._encoded(lambda: source.encode(text), "prompt")

    async def pieces(self, tokens: Sequence[int]) -> list[str]:
        source, found = await self._source(), np.asarray(tokens, np.int32)
        return await self._off_loop(
            lambda: [storable(source.decode(found[i : i + 1])) for i in range(len(found))]
        )

    async def answer(self, asked: Asked, told: Told | None) -> Answered:
        if self._unfinished + asked.n > _MOST_UNFINISHED:
            reason = f"more than {_MOST_UNFINISHED} samples would wait: try again later"
            raise Refused(reason, status=429, kind="rate_limit_error")
        self._unfinished += asked.n
        try:
            source = await self._source()
            given = asked.given
            chat = isinstance(given, tuple)
            if isinstance(given, str):
                given = await self.encode(given)
            elif isinstance(given, tuple):
                given = await self.render(given, asked.tools)
            request = self._request(source, asked, np.asarray(given, np.int32))
            if chat and (self._form.thinks or (asked.tools and self._form.calls)):
                told = None  # which parts an answer has is known at its end
            decode = self._form.decode if chat else source.decode
            gains = _Gains(source, decode, request.sampling, asked.n)
            samples = await self._sampled(request, gains, told)
            tools, sampling = asked.tools if chat else None, request.sampling
            choices = await self._off_loop(
                lambda: tuple(self._choice(source, sample, sampling, tools) for sample in samples)
            )
        finally:
            self._unfinished -= asked.n
        return Answered(request.context, choices)

    def _choice(
        self,
        source: PromptSource,
        sample: Sampled,
        sampling: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> Choice:
        """A finished sample as a choice; its message has the calls of a chat's tools."""
        assert sample.finish is not None
        tokens, stops, message = _of_text(sample, sampling), sampling.stop_strings, None
        if tools is not None:
            message = self._form.message(tokens, tools, secrets.token_hex(8), stops)
        text = storable(cut(source.decode(tokens), stops))
        version = int(sample.versions[-1])
        return Choice(sample.tokens, sample.logprobs, text, sample.finish, version, message)

    def _request(self, source: PromptSource, asked: Asked, context: np.ndarray) -> Request:
        section, ends = self._section, not self._section.rollouts.ignore_stop
        rollouts = section.rollouts
        if asked.stop and not self._engine.capabilities.stop_strings:
            raise Refused("stop: the engine of this run has no stop strings", param="stop")
        own = stop_strings_of(source) if ends else ()
        sampling = SamplingParams(
            temperature=_or(asked.temperature, rollouts.last_temperature),
            top_k=_or(asked.top_k, rollouts.top_k),
            top_p=_or(asked.top_p, rollouts.top_p),
            max_new_tokens=_or(asked.most_tokens, rollouts.max_new_tokens),
            stop_ids=(*(source.stop_ids if ends else ()), *asked.stop_ids),
            stop_strings=(*own, *asked.stop),
        )
        # A seed's next choices have the next seeds, as in vLLM.
        seeds = [
            secrets.randbits(64) if asked.seed is None else (asked.seed + i) % 2**64
            for i in range(asked.n)
        ]
        later = len(context) > rollouts.max_prompt_tokens and section.several_turns
        key = Key("serve", next(self._numbers), 0 if later else None, 0, int(later))
        request = Request(key, 1, context, tuple(seeds), sampling)
        capabilities = self._engine.capabilities
        try:
            check(request, section, capabilities.vocabulary, capabilities.side)
        except ValueError as error:
            reason = str(error).removeprefix(f"{key}: ")
            prompt = "messages" if isinstance(asked.given, tuple) else "prompt"
            raise _rejected(reason, prompt) from None
        return request

    async def _sampled(
        self, request: Request, gains: _Gains, told: Told | None
    ) -> Sequence[Sampled]:
        here, newest = asyncio.get_running_loop(), asyncio.Event()

        def report(samples: Sequence[Sampled]) -> None:
            if told is not None:
                gains.newest = samples
                here.call_soon_threadsafe(newest.set)

        async def tell(told: Told) -> None:
            while await newest.wait():
                newest.clear()
                for gain in await self._off_loop(gains.take):
                    told(*gain)

        telling = None if told is None else asyncio.ensure_future(tell(told))
        try:
            # Cancelling what is awaited here cancels it there.
            generated = asyncio.run_coroutine_threadsafe(
                self._generated(request, report), self._loop
            )
            return await asyncio.wrap_future(generated)
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    async def _generated(
        self, request: Request, report: Callable[[Sequence[Sampled]], None]
    ) -> Sequence[Sampled]:
        """On the engine's loop."""
        found: Sequence[Sampled] = ()
        try:
            async with aclosing(self._service.answers([request])) as said:
                async for _, samples, _ in said:
                    found = samples
                    report(samples)
        except CallError as error:
            raise Refused(
                one_line(str(error), _EXCERPT),
                status=_STATUS[error.kind],
                kind="invalid_request_error" if error.kind == "rejected" else "server_error",
            ) from error
        if len(found) < len(request.seeds) or any(sample.finish is None for sample in found):
            raise Refused("the samples were given up", status=503, kind="server_error")
        return found

    async def _source(self) -> PromptSource:
        if self._made is None:
            try:
                made, self._form = await self._off_loop(self._make)
                self._made = made
            except RlaxError as error:
                reason = f"the run's prompt source is not available: {one_line(str(error))}"
                raise Refused(reason, status=500, kind="server_error") from error
        return self._made

    def _make(self) -> tuple[PromptSource, AnswerForm]:
        source = self._make_source()
        if source.tokenizer is None:
            return source, AnswerForm(source.decode)
        form = form_of(source.tokenizer, "auto", "")
        if form.why_no_tools and source.tokenizer.chat.reads("tools"):
            why = "the model's chat template does not show how the model writes calls"
            form = replace(form, why_no_tools=why)
        return source, form

    async def _encoded(self, encode: Callable[[], Sequence[int]], field: str) -> list[int]:
        try:
            return [*await self._off_loop(encode)]
        except ValueError as error:
            reason = one_line(str(error), _EXCERPT)  # it may repeat the text
            raise Refused(f"{field} cannot be encoded: {reason}", param=field) from error

    async def _off_loop[T](self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)

    def close(self) -> None:
        """Ends its thread."""
        self._texts.shutdown(cancel_futures=True)


class _Gains:
    """What the samples of a request have gained since they were looked at last.

    Args:
      decode: that of the text which the answer has at its end.

    Attributes:
      newest: the samples so far; set by the engine's thread.
    """

    def __init__(
        self, source: PromptSource, decode: Decode, sampling: SamplingParams, samples: int
    ):
        self._source, self._decode, self._sampling = source, decode, sampling
        self._decoded, self._tokens, self._texts = [0] * samples, [0] * samples, [""] * samples
        self.newest: Sequence[Sampled] = ()

    def take(self) -> list[tuple[int, list[int], list[float], str]]:
        found = []
        for index, sample in enumerate(self.newest):
            begin, sent, count = self._tokens[index], self._texts[index], len(sample.tokens)
            if not worth_decoding(count, self._decoded[index]):
                continue  # what is missing at the end comes with it
            self._decoded[index] = count
            tokens, stops = _of_text(sample, self._sampling), self._sampling.stop_strings
            tokens = tokens[: whole_tokens(self._source, tokens)]
            text = stable(storable(cut(self._decode(tokens), stops)), stops)
            if not text.startswith(sent):  # at its end it is, or the stream ends with an error
                continue
            new, logprobs = sample.tokens[begin:].tolist(), sample.logprobs[begin:].tolist()
            found.append((index, new, logprobs, text[len(sent) :]))
            self._tokens[index], self._texts[index] = count, text
        return found


def _of_text(sample: Sampled, sampling: SamplingParams) -> np.ndarray:
    """The tokens of a sample's text: without the stop token that ended it, as in vLLM."""
    ended = sample.finish == "stop" and int(sample.tokens[-1]) in sampling.stop_ids
    return sample.tokens[:-1] if ended else sample.tokens


def _or[T](asked: T | None, own: T) -> T:
    return own if asked is None else asked


def _rejected(reason: str, prompt: str) -> Refused:
    """A rejection by the engine's limits, with the field that it is about; ``prompt`` is one."""
    first, second, *_ = reason.split(" ")
    fields = {"max_new_tokens": "max_tokens"} | {f: f for f in ("temperature", "top_k", "top_p")}
    fields |= {"samples,": "n", "prompt": prompt, "tokens": prompt}  # behind a number or "the"
    field = fields.get(first) or fields.get(second)
    too_long = field == prompt and first.isdecimal() and first != "0"
    shown = f"{field}: {reason}" if field == "n" else reason
    return Refused(shown, param=field, code="context_length_exceeded" if too_long else None)
