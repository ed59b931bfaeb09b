"""The environment ``verifiers``: an environment's own code plays by OpenAI's API."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Ending,
    Environment,
    EpisodeDoor,
    Outcome,
    Prompt,
    RlaxError,
    Section,
    Session,
    kill_tree,
    one_line,
    outcome_of,
)
from rlax_verifiers.source import VerifiersSource

_LONGEST = 1 << 24  # bytes of a line of the process
_EXCERPT = 500  # characters of an error
_END_S = 10.0


class VerifiersConfig(Section):
    """Plays the tasks of the prompt source ``verifiers`` by their environment's own code.

    Its rollout samples the policy's turns by OpenAI's API; the sum of its rewards is the episode's.
    """

    tool_calls: Literal["auto", "none", "hermes", "llama3", "pythonic"] = Field(
        default="auto",
        description="form in which the model writes calls of tools; auto: as its chat template "
        "writes them; none: they stay content",
    )


def check(config: VerifiersConfig, context: BuildContext) -> None:
    """Starts the environment's process once, and ends it.

    Raises:
      ConfigError: it does not start.
    """

    async def start() -> None:
        verifiers = Verifiers(config, context)
        try:
            await verifiers.running()
        finally:
            await verifiers.close()

    try:
        asyncio.run(start())
    except VerifiersError as error:
        raise ConfigError("rlax.environment.name", "verifiers", str(error)) from None


class VerifiersError(RlaxError):
    """The environment has failed, for which the policy is not to blame."""

    ending = Ending.SERVER_FAILED


class Verifiers(Environment):
    """Has one process for all episodes that this process plays; it is started when needed."""

    begins = "play"

    def __init__(self, config: VerifiersConfig, context: BuildContext):
        chosen = context.section.prompt_source
        source = context.part("prompt_source", chosen, "rlax.prompt_source")
        if not isinstance(source, VerifiersSource):
            reason = "plays the tasks of the prompt source verifiers: set it"
            raise ConfigError("rlax.environment.name", "verifiers", reason)
        for name, one in context.section.evaluation.sets.items():
            if one.prompt_source is not None:
                key = f"rlax.evaluation.sets.{name}.prompt_source"
                reason = "the environment verifiers plays the tasks of rlax.prompt_source: leave it"
                raise ConfigError(key, one.prompt_source.name, f"{reason} out")
        self._config, self._limit_s = source.config, context.section.deadlines.startup_s
        self._door = EpisodeDoor(context, config.tool_calls, "rlax.environment.tool_calls")
        if config.tool_calls not in ("auto", "none"):
            self._door.check()  # that it is the template's, before the run begins
        self._jobs, self._starting = itertools.count(), asyncio.Lock()
        self._process: _Process | None = None

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        process = await self.running()
        index, key = prompt.metadata["index"], prompt.metadata["task"]
        if not 0 <= index < len(process.tasks) or process.tasks[index] != key:
            raise VerifiersError(f"task {index} of the taskset is not what it was at the start")
        async with self._door.open(session) as access:
            said = await process.played(
                next(self._jobs),
                {
                    "index": index,
                    "base_url": access.base_url,
                    "api_key": access.api_key,
                    "model": access.model,
                },
            )
            if "error" in said:
                raise VerifiersError(one_line(str(said["error"]), _EXCERPT))
            if access.failed:
                raise VerifiersError("a request of the episode failed here")
            reply = {name: said.get(name) for name in ("reward", "metrics", "ended")}
            try:
                return outcome_of(reply, access, needs_reward=True)
            except ValueError as error:
                raise VerifiersError(f"the environment said {error}") from None

    async def running(self) -> _Process:
        """Returns the process; starts it if there is none.

        Raises:
          VerifiersError: it does not start.
        """
        async with self._starting:
            if self._process is None or self._process.ended:
                self._process = await _Process.started(self._config.command("serve"), self._limit_s)
            return self._process

    async def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            await self._process.close()


class _Process:
    """The environment's process, from this side; ``inside`` is the other one.

    Attributes:
      tasks: keys of its tasks.
      ended: True once it answers no more.
    """

    def __init__(self, process: asyncio.subprocess.Process):
        self.tasks: list[str] = []
        self.ended = False
        self._process = process
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def started(cls, command: list[str], limit_s: float) -> _Process:
        """Starts it, and waits until it has its tasks.

        Raises:
          VerifiersError: it has ended, or takes longer.
        """
        pipe = asyncio.subprocess.PIPE
        one = cls(
            await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=sys.stderr,
                limit=_LONGEST,
                start_new_session=True,
            )
        )
        try:
            async with asyncio.timeout(limit_s):
                said = await one._line()
            one.tasks = [str(key) for key in said["ready"]]
        except TimeoutError:
            await one.close()
            reason = f"was not ready within rlax.deadlines.startup_s = {limit_s:g} s"
            raise VerifiersError(f"the environment {reason}") from None
        except BaseException:
            await one.close()
            raise
        one._reading = asyncio.create_task(one._read())
        return one

    async def _line(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            said = json.loads(line) if line else None
        except ValueError as error:
            raise VerifiersError(f"the environment said no JSON: {error}") from None
        if not isinstance(said, dict):
            raise VerifiersError("the environment's process has ended: logs/rewards.log says why")
        return said

    async def _read(self) -> None:
        try:
            while True:
                said = await self._line()
                waiting = self._waiting.pop(int(said["job"]), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(said)
        except (VerifiersError, KeyError, TypeError, ValueError) as error:
            self.ended = True
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(VerifiersError(str(error)))
            self._kill()

    async def played(self, job: int, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """Has it play an episode; cancels it there if this is cancelled.

        Raises:
          VerifiersError: it has ended.
        """
        if self.ended:
            raise VerifiersError("the environment's process has ended")
        self._waiting[job] = asyncio.get_running_loop().create_future()
        try:
            self._say({"job": job, **asked})
            return await self._waiting[job]
        except asyncio.CancelledError:
            self._say({"job": job, "cancel": True})
            raise
        finally:
            self._waiting.pop(job, None)

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        if self.ended or self._process.stdin.is_closing():
            return  # whoever waits is told by what reads
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _kill(self) -> None:
        if self._process.returncode is None:
            kill_tree(self._process.pid)

    async def close(self) -> None:
        """Kills it, and the programs that play for it."""
        self.ended = True
        self._kill()
        if self._reading is not None:
            self._reading.cancel()
        async with asyncio.timeout(_END_S):
            await self._process.wait()
