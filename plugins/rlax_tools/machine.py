"""The tools ``shell`` and ``python``: commands in one sandbox, whose files stay for an episode."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from rlax_plugin.api import COMMAND_LIMITS, CallError, Ended, PathText, Section, Workspace
from rlax_tools.tool import Tool

_MIB = 1 << 20
_Mib = Annotated[int, Field(ge=16, le=1 << 20)]
# Errors of the program are among its output, in the order in which they come.
_SHELL = ["bash", "-c", 'cd "$2" && exec bash -c "$1" 2>&1', "bash"]
_PYTHON = ["bash", "-c", 'cd "$1" && exec python - 2>&1', "bash"]
_LOST = "[the sandbox was ended, and all of its files are gone]"


class SandboxConfig(Section):
    """The sandbox of the tools ``shell`` and ``python``."""

    memory_mib: _Mib = Field(default=1024, description="memory of all processes, MiB")
    space_mib: _Mib = Field(default=256, description="size of all files, which are memory too, MiB")
    see: tuple[PathText, ...] = Field(
        default=(),
        description="directories that programs can read and execute beside the system's, such as "
        "a Python environment; the first one with a bin/ is preferred to others",
    )
    allow_weak: bool = Field(
        default=False, description="run even if this machine lacks layers of the sandbox"
    )


class Machine:
    """A workspace that is started by its first command, and again if a limit has ended it.

    Args:
      files: path in the work directory -> content, of each start.
      places: see ``Workspace``.
      directory: in which commands begin.
      environment: variables of commands.
      memory_bytes, space_bytes: in place of the config's; None: these.
      longest_s: time of the longest command, which may use all processors.
    """

    def __init__(
        self,
        config: SandboxConfig,
        *,
        files: Mapping[str, bytes] | None = None,
        places: Sequence[str] = (),
        directory: str = "/tmp",
        environment: Mapping[str, str] | None = None,
        memory_bytes: int | None = None,
        space_bytes: int | None = None,
        longest_s: float = COMMAND_LIMITS.wall_s,
    ):
        self.files = dict(files or {})
        self._limits = dataclasses.replace(
            COMMAND_LIMITS,
            cpu_s=max(COMMAND_LIMITS.cpu_s, math.ceil(longest_s) * (os.cpu_count() or 1)),
            memory_bytes=memory_bytes or config.memory_mib * _MIB,
            space_bytes=space_bytes or config.space_mib * _MIB,
        )
        self._config, self._places = config, places
        self._directory, self._environment = directory, environment
        self._workspace: Workspace | None = None

    async def run(self, command: Sequence[str], stdin: bytes, limit_s: float) -> Ended:
        """Runs a command to its end; see ``Workspace.run``."""
        workspace = await self._started()
        return await workspace.run(
            command, stdin, environment=self._environment, wall_s=max(limit_s, 0.01)
        )

    async def _started(self) -> Workspace:
        if self._workspace is None or not self._workspace.alive:
            await self.close()
            see, weak = self._config.see, self._config.allow_weak
            self._workspace = Workspace(self._limits, see=see, places=self._places, allow_weak=weak)
            await self._workspace.start()
            if self.files:
                await self._workspace.put(self.files)
        return self._workspace

    async def take(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Returns files; those of the beginning, if no command has run or all is lost.

        Raises:
          CarryError: see ``Workspace.take``.
        """
        if self._workspace is None or not self._workspace.alive:
            return self.files
        return await self._workspace.take(paths)

    async def close(self) -> None:
        """Ends all processes, and removes the files."""
        if self._workspace is not None:
            await self._workspace.close()

    def tools(self, shell: bool, python: bool) -> list[Tool]:
        """Returns the chosen tools."""

        async def in_shell(arguments: Mapping[str, Any], limit_s: float) -> str:
            command = _text_of(arguments, "command")
            ended = await self.run([*_SHELL, command, self._directory], b"", limit_s)
            return self._said(ended, limit_s)

        async def in_python(arguments: Mapping[str, Any], limit_s: float) -> str:
            code = _text_of(arguments, "code").encode(errors="replace")
            ended = await self.run([*_PYTHON, self._directory], code, limit_s)
            return self._said(ended, limit_s)

        tools = []
        if shell:
            told = "Runs a command of bash, and returns what it prints. Files stay, processes end."
            tools.append(Tool(_described("shell", told, "command", "the command"), in_shell, True))
        if python:
            told = "Runs a Python program, returns what it prints. Files stay, variables do not."
            tools.append(Tool(_described("python", told, "code", "the program"), in_python, True))
        return tools

    def _said(self, ended: Ended, limit_s: float) -> str:
        parts = [ended.stdout.decode(errors="replace")] if ended.stdout else []
        if ended.why == "time":
            parts.append(f"[killed: it took longer than {limit_s:.3g} s]")
        elif ended.why == "memory":
            parts.append(f"[killed: it needed more than {self._limits.memory_bytes >> 20} MiB]")
        elif ended.why == "output":
            parts.append("[it printed more than is kept]")
        elif ended.code:
            parts.append(f"[exit code {ended.code}]")
        if self._workspace is None or not self._workspace.alive:
            parts.append(_LOST)
        return "\n".join(part.rstrip("\n") for part in parts) or "[no output]"


def _described(name: str, told: str, argument: str, meaning: str) -> dict[str, Any]:
    properties = {argument: {"type": "string", "description": meaning}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    function = {"name": name, "description": told, "parameters": parameters}
    return {"type": "function", "function": function}


def _text_of(arguments: Mapping[str, Any], name: str) -> str:
    if set(arguments) != {name} or not isinstance(arguments[name], str):
        raise CallError(f"the one argument is {name}, a text")
    return arguments[name]
