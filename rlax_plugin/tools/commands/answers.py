"""The choices of ``rlax init``, each declared once: options of the command, and its questions.

Help of the command line reads this module, so it imports nothing that takes long.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.tools.commands.recipe import STEPS

TINY = "tiny"


def _choice(default: Any, text: str) -> Any:
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True, slots=True)
class Answers:
    """The choices from which a config is written; defaults of None depend on task and model.

    Numbers are at least 1.

    Raises:
      ConfigError: a number is smaller.
    """

    model: str = _choice(
        TINY,
        "model: tiny, one of MaxText's, such as llama3.1-8b, or a directory that rlax convert has "
        "written",
    )
    task: str = _choice(
        "",
        "task: arithmetic, number_tasks for a converted model, or a plug-in with a prompt source "
        "and a reward",
    )
    data: str = _choice(
        "",
        "data to train on in place of a task: files .jsonl or .parquet (path, pattern or URL), or "
        "a directory that datasets has saved; empty: none",
    )
    reward: str = _choice(
        "",
        "reward for this data: a function of yours such as rewards.py:correct, or a name such as "
        "numeric, exact_match or math_verify; empty: numeric if the references are numbers, else "
        "exact_match",
    )
    question: str = _choice(
        "", "column of the question in this data; empty: the one named question, prompt or the like"
    )
    reference: str = _choice(
        "", "column of the right answer in this data; empty: the one named answer or the like"
    )
    demonstrations: str = _choice(
        "",
        "conversations to train on before RL, supervised: files or a directory like data; empty: "
        "none",
    )
    preset: str = _choice("dapo", "preset of the objective; rlax explain preset lists them")
    steps: int = _choice(STEPS, "number of RL steps")
    workers: int | None = _choice(
        None,
        "number of rollout worker processes; without it 2, or none where the config is for an "
        "accelerator: then the trainer's own process generates (launcher colocated)",
    )
    engine: str = _choice(
        "jetstream", "rollout engine: jetstream, or vllm, which needs --vllm-python"
    )
    vllm_python: str = _choice(
        "", "path of the Python that has vLLM, which workers start; only with --engine vllm"
    )
    staleness: int = _choice(1, "maximum staleness of a sample, in weight versions (1: on-policy)")
    output_directory: str = _choice("runs", "directory for runs: a path or a URL such as gs://...")
    group_size: int = _choice(8, "number of samples per prompt")
    groups_per_step: int | None = _choice(None, "number of prompts per step")
    max_new_tokens: int | None = _choice(None, "maximum length of a completion, in tokens")
    lora: bool = _choice(
        False, "train low-rank adapters in place of the weights of a pretrained model"
    )

    def __post_init__(self) -> None:
        for choice in declared():
            value = getattr(self, choice.name)
            if choice.type is int and value is not None and value < 1:
                raise ConfigError(f"--{choice.name.replace('_', '-')}", value, "must be at least 1")


class Declared(NamedTuple):
    """One field of ``Answers``, with the text that explains it."""

    name: str
    type: type[str] | type[int] | type[bool]
    default: Any
    text: str


def declared() -> list[Declared]:
    """Returns the fields of ``Answers``, in order."""
    types = {"str": str, "bool": bool}
    return [
        Declared(f.name, types.get(str(f.type), int), f.default, f.metadata["text"])
        for f in fields(Answers)
    ]
