"""The choices of ``rlax init``, each declared once: options of the command, and its questions.

Help of the command line reads this module, so it imports nothing that takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, get_type_hints

from rlax_plugin.commands.recipe import STEPS
from rlax_plugin.errors import ConfigError

TINY = "tiny"


@dataclass(frozen=True, slots=True)
class Answers:
    """The choices from which a config is written; defaults of None depend on task and model.

    The text beside the type of a field explains it to the user. Numbers are at least 1.

    Raises:
      ConfigError: a number is smaller.
    """

    model: Annotated[
        str,
        "model: tiny, one of MaxText's, such as llama3.1-8b, or a directory that rlax convert has "
        "written",
    ] = TINY
    task: Annotated[
        str,
        "task: arithmetic, number_tasks for a converted model, or a plug-in with a prompt source "
        "and a reward",
    ] = ""
    data: Annotated[
        str,
        "data to train on in place of a task: files .jsonl or .parquet (path, pattern or URL), or "
        "a directory that datasets has saved; empty: none",
    ] = ""
    reward: Annotated[
        str,
        "reward for this data: a function of yours such as rewards.py:correct, or a name such as "
        "numeric, exact_match or math_verify; empty: numeric if the references are numbers, else "
        "exact_match",
    ] = ""
    question: Annotated[
        str,
        "column of the question in this data; empty: the one named question, prompt or the like",
    ] = ""
    reference: Annotated[
        str, "column of the right answer in this data; empty: the one named answer or the like"
    ] = ""
    preset: Annotated[str, "preset of the objective; rlax explain preset lists them"] = "dapo"
    steps: Annotated[int, "number of RL steps"] = STEPS
    workers: Annotated[int, "number of rollout worker processes"] = 2
    staleness: Annotated[
        int, "maximum staleness of a sample, in weight versions (1: on-policy)"
    ] = 1
    output_directory: Annotated[str, "directory for runs: a path or a URL such as gs://..."] = (
        "runs"
    )
    group_size: Annotated[int, "number of samples per prompt"] = 8
    groups_per_step: Annotated[int | None, "number of prompts per step"] = None
    max_new_tokens: Annotated[int | None, "maximum length of a completion, in tokens"] = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int) and value < 1:
                raise ConfigError(f"--{one.name.replace('_', '-')}", value, "must be at least 1")


@dataclass(frozen=True, slots=True)
class Declared:
    """One field of ``Answers``: its name, type, default, and the text that explains it."""

    name: str
    type: type[str] | type[int]
    default: str | int | None
    text: str


def declared() -> list[Declared]:
    """Returns the fields of ``Answers``, in order."""
    hints = get_type_hints(Answers, include_extras=True)
    found = []
    for one in fields(Answers):
        whole, text = hints[one.name].__origin__, hints[one.name].__metadata__[0]
        kind = str if whole is str else int
        found.append(Declared(one.name, kind, one.default, text))  # pyright: ignore[reportArgumentType]
    return found
