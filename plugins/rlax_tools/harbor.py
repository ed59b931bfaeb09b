"""The prompt source ``harbor``: task directories in Harbor's public format, without containers.

The format is that of https://github.com/harbor-framework/harbor, 0.26 (``models/task/config.py``):
``task.toml``, ``instruction.md``, ``environment/`` and ``tests/test.sh``. What needs an image or a
network is refused. A task is judged in a fresh sandbox, as by a separate verifier of Harbor's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from rlax_plugin.api import (
    BuildContext,
    CarryError,
    ConfigError,
    Ending,
    Outcome,
    PathText,
    Prompt,
    RlaxError,
    Section,
    TextRow,
    TextSource,
    model_tokenizer,
)
from rlax_tools.machine import Machine, SandboxConfig

JUDGE_SHARE = 0.4  # of ``rlax.deadlines.episode_s``, that a verifier may take
_MIB = 1 << 20
_MOST_BYTES = 64 * _MIB  # of the files of a task
_CARRIED_BYTES = 15 * _MIB // 16  # that ``Workspace.take`` carries, and 512 count for each file
_IMAGES = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")
_SYSTEM = (
    "bin",
    "dev",
    "etc",
    "lib",
    "lib64",
    "logs",
    "proc",
    "sbin",
    "sys",
    "tests",
    "tmp",
    "usr",
)
_DIRECTORY = re.compile(r"(/[A-Za-z0-9_.-]+)+")
# What a test prints is not read, and must not end it.
_TEST = [
    "bash",
    "-c",
    'cd "$1" && mkdir -p /logs/verifier && exec /tests/test.sh > /dev/null 2>&1',
    "bash",
]
_REWARDS = ("logs/verifier/reward.json", "logs/verifier/reward.txt")  # in Harbor's order
_METRIC = re.compile(r"[\w.: -]{1,57}")  # with ``harbor_`` before it
_MOST_METRICS = 24

_NotNegative = Annotated[float, Field(ge=0)]


class _Agent(Section):
    network_mode: Literal["no-network"] | None = None
    timeout_sec: float | None = None


class _Verifier(Section):
    network_mode: Literal["no-network"] | None = None
    timeout_sec: Annotated[float, Field(gt=0)] = 600.0
    env: dict[str, str] = Field(default_factory=dict)
    environment_mode: Literal["shared", "separate"] = "shared"


class _Environment(Section):
    network_mode: Literal["no-network", "public"] = "public"
    allow_internet: bool | None = None
    os: Literal["linux"] = "linux"
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    memory_mb: Annotated[int, Field(ge=16)] | None = None
    storage_mb: Annotated[int, Field(ge=16)] | None = None
    gpus: Literal[0] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str = "/app"


class _Task(Section):
    """``task.toml``; other keys of the format are refused, as they are not done here."""

    schema_version: str = "1.4"
    version: str = ""
    source: str | None = None
    task: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent: _Agent = _Agent()
    verifier: _Verifier = _Verifier()
    environment: _Environment = _Environment()
    solution: dict[str, Any] = Field(default_factory=dict)
    artifacts: tuple[str, ...] = ()


class HarborConfig(Section):
    """Tasks in Harbor's format that need no image, for the environment ``tools``."""

    path: PathText = Field(description="directory of the task directories that train")
    splits: dict[Literal["validation", "test"], PathText] = Field(
        default={}, description="validation or test -> directory of its task directories"
    )
    system: str = Field(default="", description="system message before the instruction")
    template_arguments: dict[str, Any] = Field(
        default={}, description="variables of the chat template besides the messages"
    )


class _RefusedError(Exception):
    """A task cannot be played; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class HarborTask:
    """A task that can be played here.

    Attributes:
      files: path in the work directory of a sandbox -> content, of ``environment/``.
      tests: the same, of ``tests/``.
      digest: hash of everything that decides how the task is played and judged.
    """

    instruction: str
    config: _Task
    files: Mapping[str, bytes]
    tests: Mapping[str, bytes]
    digest: str

    def machine(self, config: SandboxConfig, longest_s: float) -> Machine:
        """Returns the sandbox in which it is played; see ``Machine``."""
        return self._machine(config, self.files, self.config.environment.env, longest_s)

    def _machine(
        self,
        config: SandboxConfig,
        files: Mapping[str, bytes],
        variables: Mapping[str, str],
        longest_s: float,
    ) -> Machine:
        environment = self.config.environment
        return Machine(
            config,
            files=files,
            places=(_top(environment.workdir), "tests", "logs"),
            directory=environment.workdir,
            environment=variables,
            memory_bytes=environment.memory_mb and environment.memory_mb * _MIB,
            space_bytes=environment.storage_mb and environment.storage_mb * _MIB,
            longest_s=longest_s,
        )

    async def judged(self, played: Machine, config: SandboxConfig) -> Outcome:
        """Returns the reward of what was left in a sandbox, which ends before it is judged.

        Raises:
          SandboxError: a sandbox does not work, for which nobody's answer is to blame.
        """
        paths = [self.config.environment.workdir[1:]]
        if self.config.verifier.environment_mode == "separate":
            paths = [path[1:] for path in self.config.artifacts]
        try:
            carried = dict(await played.take(paths)) if paths else {}
        except CarryError as error:
            return Outcome(ending=error.ending)
        finally:
            await played.close()
        within = {name: data for name, data in carried.items() if _is_below(name, paths)}
        variables = self.config.environment.env | self.config.verifier.env
        limit_s = self.config.verifier.timeout_sec
        machine = self._machine(config, {**within, **self.tests}, variables, limit_s)
        try:
            command = [*_TEST, self.config.environment.workdir]
            ended = await machine.run(command, b"", limit_s)
            found = await machine.take(_REWARDS)
        except CarryError as error:
            return Outcome(ending=error.ending)
        finally:
            await machine.close()
        if ended.why != "exited":
            return Outcome(ending=ended.ending)
        for name, read in zip(_REWARDS, (_of_json, _of_text), strict=True):
            if (content := found.get(name)) is not None:
                try:
                    reward, metrics = read(content)
                except (ValueError, OverflowError, RecursionError):
                    return Outcome(ending=Ending.UNREADABLE)
                return Outcome(reward=reward, metrics=metrics)
        return Outcome(ending=ended.ending or Ending.UNREADABLE)


def _is_below(name: str, paths: list[str]) -> bool:
    return any(name == path or name.startswith(f"{path}/") for path in paths)


def _of_json(content: bytes) -> tuple[float, dict[str, float]]:
    found = json.loads(content)
    values = found if isinstance(found, dict) else {"reward": found}
    numbers = {str(name): _number(value) for name, value in values.items()}
    if "reward" not in numbers:
        raise ValueError("there is no reward")
    reward = numbers.pop("reward")
    named = [name for name in numbers if _METRIC.fullmatch(name)][:_MOST_METRICS]
    return reward, {f"harbor_{name}": numbers[name] for name in named}


def _of_text(content: bytes) -> tuple[float, dict[str, float]]:
    return _number(float(content.decode())), {}


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("no finite number")
    return float(value)


class HarborSource(TextSource):
    """Prompts whose question is a task's instruction."""

    def __init__(self, config: HarborConfig, context: BuildContext):
        tokenizer = model_tokenizer(context, config.template_arguments)
        super().__init__(tokenizer, chat=True, system=config.system)
        self._directories = {"train": config.path, **config.splits}
        self._episode_s = context.section.deadlines.episode_s
        environment = context.section.environment
        options = environment.options if environment is not None else {}
        self._sandbox = SandboxConfig.model_validate(options.get("sandbox", {}))
        self.splits = tuple(self._directories)

    def rows(self, split: str) -> list[TextRow]:
        """Returns a row for each task directory, by name.

        Raises:
          ConfigError: there is none, or one cannot be played here.
        """
        directory = Path(self._directories[split])
        key = (
            "rlax.prompt_source.path" if split == "train" else f"rlax.prompt_source.splits.{split}"
        )
        try:
            names = sorted(one.name for one in os.scandir(directory) if one.is_dir())
        except OSError as error:
            raise ConfigError(key, str(directory), f"cannot be read: {error.strerror}") from None
        tasks: dict[str, HarborTask] = {}
        refused: list[str] = []
        for name in names:
            try:
                tasks[name] = read_task(directory / name)
                _check_sandbox(tasks[name].config.environment, self._sandbox)
            except _RefusedError as error:
                refused.append(f"task {name!r} {error}")
        if not names or refused:
            told = "; ".join(refused[:5]) or "has no task directories"
            more = f"; and {len(refused) - 5} more tasks" if len(refused) > 5 else ""
            raise ConfigError(key, str(directory), told + more)
        for name, task in tasks.items():
            if task.config.verifier.timeout_sec > (most := JUDGE_SHARE * self._episode_s):
                needed = task.config.verifier.timeout_sec / JUDGE_SHARE
                reason = f"leaves {most:g} s to the verifier of task {name!r}: set at least "
                raise ConfigError(
                    "rlax.deadlines.episode_s",
                    self._episode_s,
                    f"{reason}{needed:g}, or a smaller [verifier] timeout_sec in its task.toml",
                )
        return [
            TextRow(task.instruction, "", {"task": f"{split}/{name}", "digest": task.digest})
            for name, task in tasks.items()
        ]

    def task(self, prompt: Prompt) -> HarborTask:
        """Returns the task of a prompt, read anew.

        Raises:
          RlaxError: it is not what it was when the run began.
        """
        split, _, name = str(prompt.metadata["task"]).partition("/")
        try:
            task = read_task(Path(self._directories[split]) / name)
        except _RefusedError as error:
            raise RlaxError(f"task {name!r} {error}") from None
        if task.digest != prompt.metadata["digest"]:
            raise RlaxError(f"task {name!r} was changed since the run began")
        return task


def read_task(directory: Path) -> HarborTask:
    """Reads a task directory strictly.

    Raises:
      _RefusedError: it is not of the format, or needs what does not exist here.
    """
    for name in ("task.toml", "instruction.md", "environment", "tests"):
        if (directory / name).is_symlink():
            raise _RefusedError(f"has {name}, which is a link")
    try:
        given = tomllib.loads((directory / "task.toml").read_text())
        instruction = (directory / "instruction.md").read_text().strip()
    except (OSError, ValueError) as error:
        raise _RefusedError(f"cannot be read: {error}") from None
    environment = given.get("environment", {})
    if isinstance(environment, dict) and environment.get("docker_image"):
        raise _RefusedError(f"needs the image {environment['docker_image']!r}: no containers here")
    for name in _IMAGES:
        if (directory / "environment" / name).exists():
            raise _RefusedError(f"needs an image, which environment/{name} builds: no containers")
    try:
        config = _Task.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise _RefusedError(f"cannot be played here: task.toml, {place}: {first['msg']}") from None
    _check(config, directory)
    if not instruction:
        raise _RefusedError("has an empty instruction.md")
    files = _files(directory / "environment", config.environment.workdir[1:])
    tests = _files(directory / "tests", "tests")
    if "tests/test.sh" not in tests:
        raise _RefusedError("has no tests/test.sh")
    carried = sum(len(data) + len(name.encode()) + 512 for name, data in files.items())
    if config.verifier.environment_mode == "shared" and carried > _CARRIED_BYTES:
        raise _RefusedError(
            f"has {carried} bytes in environment/, which are carried to its tests, and at most "
            f'{_CARRIED_BYTES} can be: [verifier] environment_mode = "separate" carries artifacts'
        )
    digest = hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode())
    digest.update(instruction.encode())
    for name, content in (*files.items(), *tests.items()):
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return HarborTask(instruction, config, files, tests, digest.hexdigest()[:32])


def _check(config: _Task, directory: Path) -> None:
    environment = config.environment
    closed = environment.network_mode == "no-network"
    if not closed and environment.allow_internet is not False:
        raise _RefusedError('needs a network: only [environment] network_mode = "no-network" is')
    variables = {**environment.env, **config.verifier.env}
    for name, value in variables.items():
        if "${" in value:
            raise _RefusedError(f"needs a variable of this machine for {name}: {value}")
    for path in (environment.workdir, *config.artifacts):
        parts = PurePosixPath(path).parts
        if not _DIRECTORY.fullmatch(path) or ".." in parts or "." in parts:
            raise _RefusedError(f"names {path!r}, which is no plain absolute path")
    if _top(environment.workdir) in _SYSTEM:
        raise _RefusedError(f"works in {environment.workdir}, which is the system's: /app is free")
    for path in config.artifacts:
        if _top(path) != _top(environment.workdir):
            raise _RefusedError(f"has the artifact {path}, outside of {environment.workdir}")
    if (directory / "trajectory.json").exists():
        raise _RefusedError("begins with a trajectory.json")


def _check_sandbox(environment: _Environment, sandbox: SandboxConfig) -> None:
    for key, asked, given in (
        ("memory", environment.memory_mb, sandbox.memory_mib),
        ("space", environment.storage_mb, sandbox.space_mib),
    ):
        if asked is not None and asked > given:
            needs = f"needs {asked} MiB of {key}, and rlax.environment.sandbox.{key}_mib is {given}"
            raise _RefusedError(needs)
    seen = [*sandbox.see, sys.prefix, sys.base_prefix]
    for path in (*map(os.path.realpath, seen), *map(os.path.abspath, seen)):
        if _top(path) == _top(environment.workdir):
            raise _RefusedError(f"works in {environment.workdir}, beside {path} of this machine")


def _top(path: str) -> str:
    return path.split("/")[1]


def _files(directory: Path, place: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    try:
        for path in sorted(directory.rglob("*")):
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise _RefusedError(f"has {path.relative_to(directory.parent)}, which is no file")
            if path.is_file():
                left -= path.stat().st_size
                if left < 0:
                    raise _RefusedError(f"has more than {_MOST_BYTES >> 20} MiB of files")
                found[f"{place}/{path.relative_to(directory).as_posix()}"] = path.read_bytes()
    except OSError as error:
        raise _RefusedError(f"cannot be read: {error}") from None
    return found
