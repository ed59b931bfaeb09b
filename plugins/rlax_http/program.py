"""The environment ``program``: a program in the sandbox plays each episode by OpenAI's API.

What it leaves may be verified in a second, fresh sandbox. The policy may control the program, so
what ends it by force is an answer's doing, once the policy was asked: the episode pays what a wrong
one pays. What ends it before that, or a request that failed here, leaves no score.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from rlax_http.environment import task_of
from rlax_http.failures import ServerError
from rlax_plugin.api import (
    COMMAND_LIMITS,
    Access,
    BuildContext,
    CarryError,
    CheckResult,
    ConfigError,
    Ended,
    Ending,
    Environment,
    EpisodeDoor,
    Limits,
    Outcome,
    PathText,
    PositiveInt,
    Prompt,
    Seconds,
    Section,
    Session,
    Workspace,
    check_see_paths,
    check_work_paths,
    finds_program,
    one_line,
    outcome_of,
    request_metrics,
    sandbox_layers,
)

_KEY = "rlax.environment"
_MIB = 1 << 20
_PAGE_BYTES = 4096  # of which the work directory has whole ones
_MOST_BYTES = 64 * _MIB  # of the files of a program, or of a verifier
_LONGEST_S = 86_400.0  # of a program; the policy's time has deadlines of its own
_USABLE = 0.9  # part of an episode's time; the rest is for starting and ending sandboxes
_TICK_S = 0.25
_EXCERPT = 300  # characters of what a program has printed
_MOST_SHOWN = 20  # programs of a process whose end is in the log

Command = Annotated[list[str], Field(min_length=1)]


class VerifyConfig(Section):
    """A command that grades what a program has left, in a sandbox of its own."""

    command: list[str] = Field(
        default=[],
        description="program and arguments, whose result is the outcome; empty: that of the other "
        "program is",
    )
    files: list[PathText] = Field(
        default=[],
        description="files and directories that are copied into the work directory, over what was "
        "carried; the other program never sees them",
    )
    carry: list[str] = Field(
        default=[],
        description="files and directories of the program's work directory that are carried over, "
        "at most 1 MiB; what is missing, and all links, are left out",
    )
    time_s: Seconds = Field(default=30.0, description="limit for the command")

    def check_together(self) -> None:
        check_work_paths(self.carry)
        if not self.command and (self.files or self.carry):
            raise ConfigError("command", [], "is needed to verify: name a program")


class ProgramConfig(Section):
    """A program in a sandbox plays each episode, and samples the policy's turns by OpenAI's API.

    It is started for the episode, with the task as JSON on its standard input and the variables
    `OPENAI_BASE_URL`, `OPENAI_API_KEY` and `OPENAI_MODEL`, and everything that it has started ends
    with the episode.
    """

    command: Command = Field(default=..., description="program and arguments")
    files: list[PathText] = Field(
        default=[], description="files and directories that are copied into the work directory"
    )
    see: list[PathText] = Field(
        default=[],
        description="directories that programs may read and execute, such as a Python environment; "
        "those of the system and the environment of `rlax` they always see",
    )
    result: str = Field(
        default="",
        description="file of the work directory that has the outcome; empty: the last line of "
        "standard output has it",
    )
    verify: VerifyConfig = VerifyConfig()
    wrong: float = Field(
        default=0.0,
        description="reward of a wrong answer, and of an episode that a limit or a crash ended",
    )
    reference: bool = Field(
        default=False, description="true: the program also gets the prompt's reference"
    )
    tool_calls: Literal["auto", "none", "hermes", "llama3", "pythonic"] = Field(
        default="auto",
        description="form in which the model writes calls of tools; auto: as its chat template "
        "writes them; none: they stay content",
    )
    time_s: Seconds = Field(
        default=60.0, description="limit for the program, besides the policy's time"
    )
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] = Field(
        default=1024, description="memory of all processes of one program, MiB"
    )
    disk_mib: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        default=256,
        description="size of all files in the work directory, MiB, of which one has at most 64; "
        "they are in memory as well",
    )
    processes: PositiveInt = Field(
        default=64, description="processes and threads of one program at a time"
    )
    allow_weak: bool = Field(
        default=False,
        description="run even if this machine lacks layers of the sandbox, which `rlax check` "
        "names: then programs may do harm",
    )

    def check_together(self) -> None:
        if self.result:
            check_work_paths([self.result])
        if self.result and self.verify.command:
            raise ValueError("with verify, the outcome is its command's: leave result out")


def check_program(config: ProgramConfig, context: BuildContext) -> CheckResult:
    """Checks the sandbox, the files and the times before a run.

    Raises:
      ConfigError: a layer of the sandbox, a file or a directory is missing, or an episode may take
        too long.
    """
    for key, paths in _listed(config):
        _check_files(key, paths, config)
    try:
        check_see_paths(config.see)
    except ValueError as error:
        raise ConfigError(f"{_KEY}.see", config.see, str(error)) from None
    verify_s = config.verify.time_s if config.verify.command else 0.0
    most_s = _USABLE * context.section.deadlines.episode_s
    if config.time_s + verify_s > most_s:
        with_verify = f" and {_KEY}.verify.time_s together" if verify_s else ""
        raise ConfigError(
            f"{_KEY}.time_s",
            config.time_s,
            f"this{with_verify} must be at most {most_s:g}, {_USABLE:.0%} of "
            "rlax.deadlines.episode_s: an episode that takes longer is unscored, and a program "
            "that hangs should count as wrong",
        )
    offer = sandbox_layers()
    if not (refusal := offer.refusal()):
        layers = [f"{name} ({how})" if how else name for name, how in offer.having.items()]
        return CheckResult(says={"sandbox": ", ".join(layers)})
    if not config.allow_weak:
        reason = f"{refusal}. What the model has a program do could do harm; true runs it anyway"
        raise ConfigError(f"{_KEY}.allow_weak", False, reason)
    return CheckResult(warnings=[(f"{_KEY}.allow_weak", f"is true, and {refusal}")])


def _check_files(key: str, paths: Sequence[str], config: ProgramConfig) -> None:
    """Checks that the files fit, and that a command which is not on PATH is among them."""
    files = _files(key, paths)
    size = sum(-(-len(data) // _PAGE_BYTES) * _PAGE_BYTES for data in files.values())
    if size > config.disk_mib * _MIB:
        reason = f"must be at least {-(-size // _MIB)}, the size of {_KEY}.{key}"
        raise ConfigError(f"{_KEY}.disk_mib", config.disk_mib, reason)
    command = config.command if key == "files" else config.verify.command
    if not command or command[0].startswith("/"):
        return
    if "/" not in (name := command[0]):
        if not finds_program(name, config.see):
            reason = f"no program {name} is on the PATH of the sandbox: write ./{name} for a file"
            raise ConfigError(f"{_KEY}.{key.replace('files', 'command')}", command, reason)
    elif os.path.normpath(name) not in files:
        reason = f"{_KEY}.{key} has no {os.path.normpath(name)}"
        raise ConfigError(f"{_KEY}.{key.replace('files', 'command')}", command, reason)


class Program(Environment):
    """Starts the program in a sandbox, waits for its end, and has its work verified."""

    begins = "play"

    def __init__(self, config: ProgramConfig, context: BuildContext):
        self._config, self._section = config, context.section
        self._door = EpisodeDoor(context, config.tool_calls, f"{_KEY}.tool_calls")
        if config.tool_calls not in ("auto", "none"):
            self._door.check()  # that it is the template's, before the run begins
        self._files, self._shown = {key: _files(key, paths) for key, paths in _listed(config)}, 0

    async def play(self, prompt: Prompt, session: Session) -> Outcome:
        config, carried = self._config, dict[str, bytes]()
        async with self._door.open(session) as access:
            port = urlsplit(access.base_url).port
            async with self._workspace(config.time_s, port) as workspace:
                ended = await self._played(workspace, prompt, access)
                ending = Ending.OVER_TIME if ended is None else ended.ending
                if ending is not None or access.failed or workspace.failed:
                    self._note_end(ended, access, workspace)
                if not config.verify.command or not workspace.alive:
                    if ended is None or ending is not None:
                        return self._wrong(ending, access)
                    return self._outcome(await self._result(workspace, ended), access)
                try:
                    carried = await workspace.take(config.verify.carry)
                except CarryError as error:
                    return self._wrong(error.ending, access)
        # Its sandbox is gone, and its key.
        return await self._verified(config.verify, prompt, access, carried)

    def _workspace(self, time_s: float, port: int | None) -> Workspace:
        config = self._config
        limits = Limits(
            wall_s=time_s,
            # Of each process, all of whose threads count; the time of the whole ends the others.
            cpu_s=math.ceil(time_s * (os.cpu_count() or 1)) + 1,
            memory_bytes=config.memory_mib * _MIB,
            processes=config.processes,
            open_files=COMMAND_LIMITS.open_files,
            file_bytes=min(config.disk_mib * _MIB, COMMAND_LIMITS.file_bytes),
            space_bytes=config.disk_mib * _MIB,
        )
        return Workspace(limits, see=config.see, port=port, allow_weak=config.allow_weak)

    async def _played(self, workspace: Workspace, prompt: Prompt, access: Access) -> Ended | None:
        """Returns how the program ended; None if its time was over, and it was killed."""
        await workspace.put(self._files["files"])
        address = urlsplit(access.base_url)
        inside = address._replace(netloc=f"{address.hostname}:{workspace.reached}").geturl()
        task = task_of(prompt, access, with_reference=self._config.reference)
        task["base_url"] = inside
        environment = {
            "OPENAI_BASE_URL": inside,
            "OPENAI_API_KEY": access.api_key,
            "OPENAI_MODEL": access.model,
        }
        running = workspace.run(
            self._config.command,
            json.dumps(task).encode(),
            environment=environment,
            wall_s=_LONGEST_S,
        )
        return await _within(self._config.time_s, running, access)

    def _note_end(self, ended: Ended | None, access: Access, workspace: Workspace) -> None:
        """Writes to the log that a program did not end well.

        Raises:
          ServerError: the policy cannot be to blame.
        """
        text = "it took longer than time_s" if ended is None else _said(ended)
        if access.failed or workspace.failed:
            raise ServerError(f"the program had a request that failed here: {text}", passes=True)
        if not access.used:
            reason = f"the program ended before it asked the policy: {text}"
            raise ServerError(reason, passes=False)
        self._shown += 1
        if self._shown <= _MOST_SHOWN:
            print(f"a program ended as a wrong answer: {text}", file=sys.stderr)

    async def _result(self, workspace: Workspace, ended: Ended) -> bytes:
        name = self._config.result
        if not name:
            return ended.stdout
        try:
            taken = await workspace.take([name])
        except CarryError as error:
            raise ServerError(
                f"the program left a result that cannot be read: {error}", passes=False
            ) from None
        if name not in taken:
            raise ServerError(f"the program left no file {name!r}", passes=False)
        return taken[name]

    async def _verified(
        self, verify: VerifyConfig, prompt: Prompt, access: Access, carried: Mapping[str, bytes]
    ) -> Outcome:
        task = {
            "task": prompt.id,
            "text": prompt.text,
            "metadata": dict(prompt.metadata),
            "reference": prompt.reference,
        }
        async with self._workspace(verify.time_s, None) as fresh:
            files = self._files["verify.files"]
            try:  # first alone: what fails here is not due to what was carried
                await fresh.put(files)
            except CarryError as error:
                raise ServerError(f"verify.files: {error}", passes=False) from None
            try:
                await fresh.put(carried)
                await fresh.put(files)
            except CarryError as error:
                return self._wrong(error.ending, access)
            ended = await fresh.run(verify.command, json.dumps(task).encode())
        if not ended.began:
            raise ServerError(f"the verifier cannot be executed: {_said(ended)}", passes=False)
        if ended.ending is not None:
            self._shown += 1
            if self._shown <= _MOST_SHOWN:
                print(f"a verifier ended as for a wrong answer: {_said(ended)}", file=sys.stderr)
            return self._wrong(ended.ending, access)
        return self._outcome(ended.stdout, access, "verifier")

    def _wrong(self, ending: Ending | None, access: Access) -> Outcome:
        metrics, reward = request_metrics(access), self._config.wrong
        return Outcome(metrics=metrics, reward=reward, ending=ending)

    def _outcome(self, said: bytes, access: Access, who: str = "program") -> Outcome:
        """Returns the outcome in the last line of an output.

        Raises:
          ServerError: there is none.
        """
        lines = said.decode(errors="replace").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "")
        try:
            reply = json.loads(line)
        except (ValueError, RecursionError):
            begins = one_line(line, _EXCERPT)
            reason = f"the {who} replied no JSON in its last line: {begins!r}"
            raise ServerError(reason, passes=False) from None
        try:
            return outcome_of(reply, access, needs_reward=not self._section.rewards)
        except ValueError as error:
            raise ServerError(f"the {who} replied {error}", passes=False) from None


async def _within(
    time_s: float, running: Coroutine[Any, Any, Ended], access: Access
) -> Ended | None:
    """Waits for a program; None if its own time is over, without that of the policy."""
    task, left_s = asyncio.ensure_future(running), time_s
    try:
        while left_s > 0:
            sampling, begun_s = access.sampling, time.monotonic()
            await asyncio.wait({task}, timeout=min(_TICK_S, left_s))
            if task.done():
                return task.result()
            if not sampling:
                left_s -= time.monotonic() - begun_s
        return None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _said(ended: Ended) -> str:
    """Describes the end of a program, with the last line of its errors."""
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    how = {"exited": f"exit code {ended.code}", "signal": f"signal {-ended.code}"}
    return one_line(": ".join(filter(None, [how.get(ended.why, ended.why), last])), _EXCERPT)


def _listed(config: ProgramConfig) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields the keys that list files, and these."""
    yield "files", config.files
    yield "verify.files", config.verify.files


def _files(key: str, paths: Sequence[str]) -> dict[str, bytes]:
    """Returns the files below some paths, by their place in a work directory.

    Raises:
      ConfigError: one cannot be read, two have the same place, or they are too large.
    """
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    for listed in paths:
        path = Path(listed).absolute()
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            if file.is_dir():
                continue
            place = str(file.relative_to(path.parent))
            if place in found:
                raise ConfigError(f"{_KEY}.{key}", listed, f"a second {place} is listed")
            if not file.is_file():  # a pipe would be waited for
                raise ConfigError(f"{_KEY}.{key}", listed, f"{file} is not there, or no file")
            try:
                left -= file.stat().st_size
                if left < 0:
                    reason = f"they have more than {_MOST_BYTES >> 20} MiB"
                    raise ConfigError(f"{_KEY}.{key}", list(paths), reason)
                found[place] = file.read_bytes()
            except OSError as error:
                raise ConfigError(f"{_KEY}.{key}", listed, f"cannot be read: {error}") from None
    return found
