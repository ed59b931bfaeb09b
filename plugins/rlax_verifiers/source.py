"""The prompt source ``verifiers``: the tasks of an environment, which its own Python lists."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    PathText,
    Section,
    TextRow,
    TextSource,
    model_tokenizer,
    one_line,
)

_KEY = "rlax.prompt_source"
_INSIDE = Path(__file__).parent / "inside.py"
_EXCERPT = 500  # characters of an error


class VerifiersSourceConfig(Section):
    """The tasks of an environment of verifiers 0.4, for the environment ``verifiers``.

    It is imported by a Python of its own, so that its packages never meet those of the run.
    """

    python: PathText = Field(description="Python with verifiers and the taskset's package")
    taskset: str = Field(description="id of the taskset, as for verifiers' vf-eval")
    env: dict[str, Any] = Field(
        default_factory=dict,
        description="further keys of verifiers' [env], such as {agent: {harness: {id: bash}}}; the "
        "default is the harness null, without a container",
    )
    most_tasks: Annotated[int, Field(ge=0)] = Field(
        default=0, description="number of tasks, the first ones; 0: all"
    )
    allow_weak: bool = Field(
        default=False,
        description="true: also a harness that executes what the policy writes on this machine, "
        "without a sandbox, as with the runtime subprocess",
    )

    @property
    def resolved(self) -> dict[str, Any]:
        """``[env]`` of verifiers."""
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
        given = dict(self.env)
        agent |= dict(given.pop("agent", {}))
        taskset = {**dict(given.pop("taskset", {})), "id": self.taskset}
        return {**given, "taskset": taskset, "agent": agent}

    def command(self, what: str) -> list[str]:
        """Returns the command of the environment's process; what: ``list`` or ``serve``."""
        settings = {
            "env": self.resolved,
            "most_tasks": self.most_tasks,
            "allow_weak": self.allow_weak,
        }
        return [self.python, str(_INSIDE), what, json.dumps(settings)]


class VerifiersSource(TextSource):
    """A prompt is a task: its messages, and its place among the tasks.

    Attributes:
      config: as given.
    """

    splits = ("train",)

    def __init__(self, config: VerifiersSourceConfig, context: BuildContext):
        super().__init__(model_tokenizer(context), chat=True)
        self.config, self._limit_s = config, context.section.deadlines.prompts_s
        if shutil.which(config.python) is None:
            reason = "is no program: the Python of an environment with verifiers 0.4"
            raise ConfigError(f"{_KEY}.python", config.python, reason)

    def rows(self, split: str) -> list[TextRow]:
        """Returns a row for each task.

        Raises:
          ConfigError: the environment cannot be loaded, or lists no tasks.
        """
        try:
            done = subprocess.run(
                self.config.command("list"),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._limit_s,
                check=False,
            )
            lines = [json.loads(line) for line in done.stdout.splitlines()]
        except subprocess.TimeoutExpired:
            reason = f"did not list its tasks within rlax.deadlines.prompts_s = {self._limit_s:g} s"
            raise ConfigError(f"{_KEY}.taskset", self.config.taskset, reason) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{_KEY}.python", self.config.python, str(error)) from None
        if done.returncode or not lines or lines.pop() != {"listed": True}:
            told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            reason = f"could not be listed: {one_line(told, _EXCERPT)}"
            raise ConfigError(f"{_KEY}.taskset", self.config.taskset, reason)
        try:
            return [_row(index, line) for index, line in enumerate(lines)]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{_KEY}.taskset", self.config.taskset, f"{error!r}") from None


def _row(index: int, line: dict[str, Any]) -> TextRow:
    prompt, metadata = line["prompt"], {"task": str(line["key"]), "index": index}
    system = [{"role": "system", "content": line["system"]}] if line["system"] else []
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    # A task may leave it to its program how a conversation begins.
    return TextRow([*system, *(prompt or [])] or f"task {index}", "", metadata)
