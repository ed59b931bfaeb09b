"""The loop of a chat model with tools: a call is executed, and its result is the next message."""

from __future__ import annotations

import asyncio
import itertools
import json
import keyword
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    AssistantMessage,
    BuildContext,
    CallError,
    ConfigError,
    Ending,
    Environment,
    EpisodeLimit,
    FunctionTool,
    Outcome,
    PositiveInt,
    Prompt,
    PromptSource,
    RlaxError,
    Seconds,
    Section,
    Session,
    ToolCall,
    alternatives,
    check_see_paths,
    form_of,
    sandbox_layers,
    stop_strings_of,
    storable,
)
from rlax_tools.harbor import JUDGE_SHARE, HarborSource
from rlax_tools.machine import Machine, SandboxConfig
from rlax_tools.mcp_servers import McpServer, ServerConfig, check_installed
from rlax_tools.tool import Tool, by_name

_KEY = "rlax.environment"
_USABLE = 0.9  # part of ``rlax.deadlines.episode_s``; the rest is for starting and ending tools
_COUNTS = ("tool_calls", "tool_calls_wrong", "tool_results_cut")
_LATE = "a call of the tool {} took longer than rlax.environment.call_s = {:g} s"
_MALFORMED = "Error: a call in the answer is malformed, so none was executed"


class ToolFunction(Section):
    """A function as a tool."""

    function: str = Field(description="FILE.py:NAME or package.module:NAME")


class ToolsConfig(Section):
    """A chat model calls tools: each result is a message, until an answer has no call."""

    functions: tuple[ToolFunction, ...] = Field(
        default=(),
        description="functions of yours as tools, {function: FILE.py:NAME}; annotations and "
        "docstring describe them to the policy",
    )
    mcp: dict[str, ServerConfig] = Field(
        default_factory=dict,
        description="name -> a server of the Model Context Protocol, whose tools are offered: "
        "{command: [PROGRAM, ...]}; life: process shares it between episodes",
    )
    shell: bool = Field(
        default=False, description="true: the tool shell, which runs a command in the sandbox"
    )
    python: bool = Field(
        default=False, description="true: the tool python, which runs a program in the sandbox"
    )
    sandbox: SandboxConfig = SandboxConfig()
    tool_calls: Literal["auto", "hermes", "llama3", "pythonic"] = Field(
        default="auto",
        description="form in which the model writes calls of tools; auto: as its chat template "
        "writes them",
    )
    call_s: Seconds = Field(default=30.0, description="limit for one call")
    max_calls: PositiveInt = Field(
        default=32,
        description="number of calls in one episode; one more is not executed and cuts the episode",
    )
    result_chars: PositiveInt = Field(
        default=8000, description="characters of a result; the middle of a longer one is left out"
    )

    def check_together(self) -> None:
        if not (self.functions or self.mcp or self.shell or self.python):
            raise ConfigError("functions", [], "must name a tool, unless another key does")


class LateToolError(RlaxError):
    """A trusted tool did not return in time, for which the policy is not to blame."""

    ending = Ending.ENVIRONMENT_LATE


class Tools(Environment):
    """Executes what the policy calls, and gives it the results, in the order of the calls.

    What is wrong with a call is its result. A tool that fails leaves the episode without a score.

    Attributes:
      source: the prompts, and their tokenizer.
    """

    begins = "play"

    def __init__(self, config: ToolsConfig, context: BuildContext):
        self._config, self._context = config, context
        # A function must return the same for the same arguments, as one of the rewards must.
        self.deterministic = not (config.mcp or config.shell or config.python)
        section = context.section
        self.source: PromptSource = context.part(
            "prompt_source", section.prompt_source, "rlax.prompt_source"
        )
        if self.source.tokenizer is None:
            reason = "needs a prompt source with a tokenizer, whose chat template takes tools"
            raise ConfigError(f"{_KEY}.name", "tools", reason)
        for name, one in section.evaluation.sets.items():
            if one.prompt_source is not None:
                reason = (
                    "the environment tools reads its prompts by rlax.prompt_source: leave it out"
                )
                raise ConfigError(
                    f"rlax.evaluation.sets.{name}.prompt_source", one.prompt_source.name, reason
                )
        key = f"{_KEY}.tool_calls"
        self._form = form_of(self.source.tokenizer, config.tool_calls, key)
        if self._form.why_no_tools:
            raise ConfigError(key, config.tool_calls, self._form.why_no_tools)
        self._stop_strings = () if section.rollouts.ignore_stop else stop_strings_of(self.source)
        # Templates are rendered one at a time; a tool that hangs must not hold them up.
        self._texts = ThreadPoolExecutor(1, "rlax-tools-text")
        self._starting = asyncio.Lock()
        self._functions: Sequence[Tool] | None = None
        self._servers = {
            name: McpServer(name, server, section.deadlines.startup_s)
            for name, server in config.mcp.items()
        }

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        sandbox, share, task = self._config.sandbox, _USABLE, None
        if isinstance(self.source, HarborSource):
            task = await asyncio.to_thread(self.source.task, prompt)
            share -= JUDGE_SHARE
        machine = self._machine() if task is None else task.machine(sandbox, self._config.call_s)
        counts: dict[str, float] = {name: 0.0 for name in _COUNTS}
        left_s = share * self._context.section.deadlines.episode_s
        async with self.opened(machine) as tools:
            ended = await self._played(prompt, session, tools, left_s, counts)
            judged = Outcome() if task is None else await task.judged(machine, sandbox)
        return replace(judged, ended=ended, metrics={**counts, **judged.metrics})

    async def _played(
        self,
        prompt: Prompt,
        session: Session,
        tools: Mapping[str, Tool],
        left_s: float,
        counts: dict[str, float],
    ) -> Literal["done", "cut"]:
        messages: Sequence[Mapping[str, Any]] = self.source.messages(prompt)
        described, after = [tool.description for tool in tools.values()], None
        for number in itertools.count():
            given = await self.encoded(messages, after, described)
            if after is not None and len(given) >= session.tokens_left:
                break
            try:
                answer = await session.sample(given)
            except EpisodeLimit:
                if after is None:  # the prompt alone does not fit
                    raise
                break
            after = answer.tokens
            message = await self._read(after, described, str(number))
            wrong = self._form.attempts_call(message)
            if not message.tool_calls and not wrong:
                return "done"
            counts["tool_calls"] += len(message.tool_calls) or 1
            if left_s <= 0 or counts["tool_calls"] > self._config.max_calls:
                break
            messages = [{"role": "tool", "content": _MALFORMED}] if wrong else []
            counts["tool_calls_wrong"] += wrong
            for call in message.tool_calls:
                begun_s = time.monotonic()
                try:
                    result = await self._result(call, tools, left_s, counts)
                except EpisodeLimit:
                    return "cut"
                left_s -= time.monotonic() - begun_s
                messages = [*messages, result]
        return "cut"

    async def _result(
        self, call: ToolCall, tools: Mapping[str, Tool], left_s: float, counts: dict[str, float]
    ) -> dict[str, Any]:
        """Returns the message with the result of a call."""
        try:
            if (tool := tools.get(call.name)) is None:
                reason = f"there is no tool {call.name!r}; {alternatives(call.name, tools)}"
                raise CallError(reason)
            text = await self._executed(tool, json.loads(call.arguments), left_s)
        except CallError as error:
            counts["tool_calls_wrong"] += 1
            text = f"Error: {error}"
        text = storable(text)
        if len(text) > (most := self._config.result_chars):
            counts["tool_results_cut"] += 1
            begin, end = text[: most - most // 2], text[len(text) - most // 2 :]
            text = f"{begin}\n[{len(text) - most} characters are left out]\n{end}"
        return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}

    async def _executed(self, tool: Tool, arguments: Mapping[str, Any], left_s: float) -> str:
        call_s = self._config.call_s
        if (limit_s := min(call_s, left_s)) <= 0:
            raise EpisodeLimit("the time for all calls is over")
        if tool.ready is not None:
            await tool.ready()
        if tool.own_limit:
            return await tool.call(arguments, limit_s)
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await tool.call(arguments, limit_s)
        except TimeoutError:
            if not limit.expired():
                raise
            if limit_s < call_s:
                raise EpisodeLimit("the time for all calls is over") from None
            raise LateToolError(_LATE.format(tool.name, call_s)) from None

    @asynccontextmanager
    async def opened(self, machine: Machine | None = None) -> AsyncIterator[Mapping[str, Tool]]:
        """Offers the tools of one episode, by their names; ends what they have started.

        Args:
          machine: the sandbox; None: a new one.

        Raises:
          ConfigError: a function cannot be used, two tools have the same name, or calls cannot be
            written in the model's form.
        """
        machine = machine or self._machine()
        async with self._starting:
            if self._functions is None:
                self._functions = await asyncio.to_thread(self._loaded)
            for server in self._servers.values():
                await server.listed()
        async with AsyncExitStack() as stack:
            tools = [*self._functions]
            for server in self._servers.values():
                tools += await stack.enter_async_context(server.of_episode())
            stack.push_async_callback(machine.close)
            tools += machine.tools(self._config.shell, self._config.python)
            found = by_name(tools)
            if self._form.calls == "pythonic":
                _check_written(found, self._config.tool_calls)
            yield found

    def _machine(self) -> Machine:
        return Machine(self._config.sandbox, longest_s=self._config.call_s)

    def _loaded(self) -> Sequence[Tool]:
        loaded = []
        for number, one in enumerate(self._config.functions):
            found = FunctionTool(one.function, _place(number), self._context)
            loaded.append(Tool(found.description, lambda a, _, found=found: found.call(a)))
        return loaded

    async def close(self) -> None:
        """Ends the servers of all episodes, and the thread that encodes."""
        self._texts.shutdown(wait=False)
        for server in self._servers.values():
            await server.close()

    async def encoded(
        self,
        messages: Sequence[Mapping[str, Any]],
        after: np.ndarray | None,
        described: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """Returns the tokens of messages, see ``PromptSource.encode_messages``."""
        encode = self.source.encode_messages
        return [*await self._off_loop(lambda: encode(messages, after, described))]

    async def _read(
        self, tokens: np.ndarray, described: Sequence[Mapping[str, Any]], ids: str
    ) -> AssistantMessage:
        strings = self._stop_strings
        return await self._off_loop(lambda: self._form.message(tokens, described, ids, strings))

    async def _off_loop[T](self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._texts, work)


def _check_written(tools: Mapping[str, Tool], configured: str) -> None:
    """Refuses names, such as a server's, that a call in Python's syntax cannot have."""
    for tool in tools.values():
        properties = (tool.description["function"].get("parameters") or {}).get("properties")
        for name in (tool.name, *(properties if isinstance(properties, dict) else ())):
            if not name.isidentifier() or keyword.iskeyword(name):
                reason = (
                    f"cannot write {name!r} of the tool {tool.name!r} in the form pythonic: it is "
                    "no name in Python"
                )
                raise ConfigError(f"{_KEY}.tool_calls", configured, reason)


def _place(number: int) -> str:
    return f"{_KEY}.functions.{number}.function"


def check_start(config: ToolsConfig, context: BuildContext) -> None:
    """Checks the functions, in a process of their own, and that what servers need is installed.

    Raises:
      ConfigError: one cannot be used.
    """
    if config.mcp:
        check_installed()
    in_sandbox = config.shell or config.python
    if in_sandbox and not config.sandbox.allow_weak and (refusal := sandbox_layers().refusal()):
        reason = f"{refusal}; true runs what the policy writes with the layers that there are"
        raise ConfigError(f"{_KEY}.sandbox.allow_weak", False, reason)
    try:
        check_see_paths(config.sandbox.see)
    except ValueError as error:
        raise ConfigError(f"{_KEY}.sandbox.see", list(config.sandbox.see), str(error)) from None
    for number, one in enumerate(config.functions):
        FunctionTool.check(one.function, _place(number), context)


def check(config: ToolsConfig, context: BuildContext) -> None:
    """Starts the tools, and encodes a prompt with their descriptions.

    Raises:
      ConfigError: a prompt with the tools is too long, or cannot be encoded.
    """
    asyncio.run(_check(Tools(config, context), context))


async def _check(tools: Tools, context: BuildContext) -> None:
    source = tools.source
    (prompt,) = source.prompts("train")[:1]
    key, most = "rlax.rollouts.max_prompt_tokens", context.section.rollouts.max_prompt_tokens
    try:
        async with tools.opened() as found:
            described = [tool.description for tool in found.values()]
            tokens = await tools.encoded(source.messages(prompt), None, described)
    except ValueError as error:
        raise ConfigError(f"{_KEY}.name", "tools", str(error)) from error
    finally:
        await tools.close()
    if len(tokens) > most:
        reason = f"a prompt with the descriptions of the tools has {len(tokens)} tokens"
        raise ConfigError(key, most, reason)
