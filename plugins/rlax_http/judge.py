"""The reward ``llm_judge``: a language model grades completions, over the OpenAI protocol.

The protocol is that of ``POST BASE_URL/chat/completions``
(https://platform.openai.com/docs/api-reference/chat), which vLLM, SGLang, llama.cpp and most
providers speak.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from rlax_http.client import Client, Reply, names_of
from rlax_http.failures import ServerError, UnreadableError
from rlax_http.server import ServerConfig, check_url, choices_of, looks_secret
from rlax_http.verdict import (
    CONTROL,
    Kind,
    code_of,
    coded,
    default_template,
    pieces,
    question,
    verdict,
)
from rlax_http.verifier import USABLE
from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Ending,
    PositiveInt,
    Prompt,
    Score,
    names_secret,
)

_MAY_BE_THE_COMPLETION = (400, 413, 422)  # HTTP status: too long, or refused for what it says
_MOST_TOKENS = 10_000_000  # of one answer: what a server counts beyond that is no count


class JudgeConfig(ServerConfig):
    """Scores completions by the verdict of a language model."""

    base_url: str = Field(
        default=...,
        description="address of the API up to and without /chat/completions, such as "
        "http://localhost:8000/v1",
    )
    model: str = Field(default=..., min_length=1, description="name of the model on that server")
    system: str = Field(default="", description="system message; empty: none is sent")
    template: str = Field(
        default="",
        description="the question, with the fields {prompt}, {completion}, {reference}, {mark}, a "
        "line that the completion cannot contain, and {marker}, such as Score wkbdtrmzqc:, with "
        "letters that differ for each completion, which must be before the verdict of number and "
        "yes_no. Empty: asks whether the completion is right, in the form that verdict reads",
    )
    verdict: Kind = Field(
        default="number",
        description="verdict to read in the judge's answer: number or yes_no behind the marker, "
        "or json, an object with a field score",
    )
    lowest: float = Field(default=0.0, description="verdict whose reward is 0, unless yes_no")
    highest: float = Field(
        default=10.0,
        description="verdict whose reward is 1, unless yes_no; a verdict outside of lowest and "
        "highest is an error",
    )
    max_tokens: PositiveInt = Field(default=512, description="tokens of the judge's answer at most")
    body: dict[str, Any] = Field(
        default={},
        description="further fields of each request, such as {top_p: 0.9}; null removes a field, "
        "such as {max_tokens: null, max_completion_tokens: 512}",
    )

    def check_together(self) -> None:
        check_url("base_url", self.base_url)
        if self.lowest >= self.highest:
            raise ConfigError("lowest", self.lowest, f"must be below highest = {self.highest:g}")
        for name, value in self.body.items():
            if names_secret(name) or (isinstance(value, str) and looks_secret(value)):
                reason = "looks like a key; name an environment variable with key_env instead"
                raise ConfigError(f"body.{name}", None, reason)
            if name in ("messages", "model", "stream", "n"):
                raise ConfigError(f"body.{name}", value, "must not be given: the reward sets it")
        names = [name for _, name in pieces(self.question)]
        if self.verdict != "json" and "marker" not in names:
            reason = (
                "must have the field {marker} before the verdict: it has letters that no "
                "completion knows, so that a quoted verdict is not read"
            )
            raise ConfigError("template", self.template, reason)
        if self.verdict == "json" and "marker" in names:
            reason = "must not have the field {marker}, which verdict json does not use"
            raise ConfigError("template", self.template, reason)

    @property
    def question(self) -> str:
        """The template, or the default one for this kind of verdict."""
        return self.template or default_template(self.verdict, self.lowest, self.highest)


class LlmJudge:
    """Asks the judge one question for each completion."""

    def __init__(self, config: JudgeConfig, context: BuildContext):
        section = context.section
        self._config, self._pieces = config, pieces(config.question)
        self.client = Client(
            config,
            config.base_url.rstrip("/") + "/chat/completions",
            config.key(),
            processes=section.reward_processes,
        )
        self._limit_s = USABLE * section.deadlines.reward_s
        # Of a weight below 0 the highest verdict pays least.
        negative = any(choice.lowest_weight < 0 for _, choice in choices_of(config, context))
        self._worst, self._pick = (1.0, max) if negative else (0.0, min)

    async def __call__(self, prompt: Prompt, completion: str) -> Score:
        until_s = time.monotonic() + self._limit_s
        try:
            return await self._score(prompt, completion, until_s)
        except UnreadableError as error:
            # An answer that the completion has made unreadable is worth no more than a wrong one.
            # If the judge fails for another completion too, the failure is its own.
            try:
                await self._score(prompt, CONTROL, until_s)
            except ServerError:
                raise error from None
            why = "so the completion counts as wrong: the judge can grade another one"
            print(f"{error}; {why}", file=sys.stderr)  # to logs/rewards.log
            metrics = {"judge_requests": 2.0, "judge_unreadable": 1.0}
            return Score(self._worst, metrics=metrics, ending=Ending.UNREADABLE)

    async def _score(self, prompt: Prompt, completion: str, until_s: float) -> Score:
        """Asks one time.

        Raises:
          ServerError: there is no answer.
          UnreadableError: the answer has no verdict.
        """
        left_s = max(0.0, until_s - time.monotonic())
        try:
            reply = await self.client.post(self.request(prompt, completion), left_s)
        except ServerError as error:
            if error.status in _MAY_BE_THE_COMPLETION:
                raise UnreadableError(str(error), error.status) from None
            raise
        return self.reward_of(reply, prompt, completion)

    def request(self, prompt: Prompt, completion: str) -> dict[str, Any]:
        """Returns the body of a request."""
        config = self._config
        messages = [{"role": "system", "content": config.system}] if config.system else []
        messages += [{"role": "user", "content": question(self._pieces, prompt, completion)}]
        body = {
            "model": config.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": config.max_tokens,
            **config.body,
        }
        return {name: value for name, value in body.items() if value is not None}

    def reward_of(self, reply: Reply, prompt: Prompt, completion: str) -> Score:
        """Returns the reward in an answer.

        Raises:
          ServerError: it is not an answer of a judge.
          UnreadableError: it has no verdict.
        """
        config = self._config
        text, code = self._text(reply.content), code_of(prompt, completion)
        try:
            value = verdict(text, config.verdict, code, self._pick, config.highest)
        except ValueError as error:
            said = str(error).replace(repr(code), repr(coded(code)))
            end = self.client.shown(text[-100:])
            raise UnreadableError(f"{said}; it ends with {end!r}") from None
        if config.verdict != "yes_no":
            if not config.lowest <= value <= config.highest:
                said = f"the judge's verdict {value:g} is not from {config.lowest:g} to "
                raise UnreadableError(f"{said}{config.highest:g}")
            value = (value - config.lowest) / (config.highest - config.lowest)
        metrics = {"judge_requests": float(reply.tries), "judge_unreadable": 0.0}
        if (used := _used_tokens(reply.content)) is not None:
            metrics["judge_tokens"] = used
        return Score(value, metrics=metrics)

    def _text(self, content: Any) -> str:
        """Returns the complete text that the judge wrote."""
        try:
            choice = content["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
        except (LookupError, TypeError, AttributeError):
            what = self.client.shown(names_of(content))
            said = f"the answer of the judge's server is {what}: it is no chat completion"
            raise ServerError(said, passes=False) from None
        if finish == "length":
            said = f"the judge's answer was cut at max_tokens = {self._config.max_tokens}"
            raise UnreadableError(f"{said}, before its verdict")
        if not isinstance(text, str):
            shown = self.client.shown(json.dumps(choice))
            raise UnreadableError(f"the judge's answer has no text: {shown}")
        return text


def _used_tokens(content: Any) -> float | None:
    """Returns the tokens that the server counted for a request; None if meaningless."""
    usage = content.get("usage") if isinstance(content, Mapping) else None
    used = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    if isinstance(used, int) and 0 <= used <= _MOST_TOKENS:
        return float(used)
    return None
