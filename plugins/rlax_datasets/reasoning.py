"""The prompt source ``reasoning_gym``: procedural tasks of the package of that name.

https://github.com/open-thought/reasoning-gym: about a hundred tasks, each with a generator of
entries ``{"question", "answer", "metadata"}`` and a scorer, which is the reward of the same name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from rlax_datasets.values import plain
from rlax_plugin.api import (
    INT32_MAX,
    BrokenRow,
    ConfigError,
    DatasetConfig,
    DatasetSource,
    NonNegativeInt,
    PositiveInt,
    Section,
    alternatives,
    one_line,
)

PACKAGE = "reasoning_gym"
_KEY = "rlax.prompt_source"
_COLUMN = "task"
_OF_GENERATORS = (ArithmeticError, AssertionError, LookupError, RuntimeError, ValueError)
_OURS = ("splits", "domain", "weights", "reference")


class Task(Section):
    """A task of reasoning-gym.

    Attributes:
      weight: its share of the training prompts, relative to the other tasks.
      options: of its generator, such as {min_numbers: 3, max_numbers: 4} of countdown.
    """

    weight: Annotated[float, Field(gt=0)] = 1.0
    options: Mapping[str, Any] = {}


class ReasoningGymConfig(DatasetConfig):
    """Prompts that tasks of reasoning-gym generate. It needs the extra reasoning-gym.

    Each task is a domain. The reward reasoning_gym scores the answers: what its scorer needs is in
    the metadata of a prompt.
    """

    tasks: Mapping[str, Task] = Field(
        min_length=1,
        description="task -> {weight, options}: its share of the training prompts, relative to the "
        "others (1 unless given), and the options of its generator; such as {countdown: {weight: "
        "2, options: {max_numbers: 4}}, leg_counting: {}}",
    )
    size: PositiveInt = Field(
        default=1000, description="entries that are generated of each task, for all splits together"
    )
    seed: NonNegativeInt = Field(default=0, description="decides which entries these are")
    domain: str = Field(default=_COLUMN, description=f"always {_COLUMN}")
    question: str = Field(
        default="question",
        description="column question; or a template, such as '{question}\\nAnswer in <answer> "
        "tags.'",
    )
    reference: str = Field(default="answer", description="always answer")

    @model_validator(mode="before")
    @classmethod
    def _domains_are_tasks(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or not isinstance(given.get("tasks"), Mapping):
            return given
        weights = {
            name: task.get("weight", 1.0) if isinstance(task, Mapping) else 1.0
            for name, task in given["tasks"].items()
        }
        fixed = {"splits": {}, "domain": _COLUMN, "weights": weights, "reference": "answer"}
        for option in _OURS:
            if option in given and given[option] != fixed[option]:
                other = "held_out makes splits" if option == "splits" else "tasks decides it"
                raise ConfigError(option, given[option], f"cannot be given here: {other}")
        # Behind this function a list is not taken for a tuple any more.
        plain = {key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
        return {**plain, **fixed}


class ReasoningGymSource(DatasetSource):
    """The entries of all tasks, one of each in turn."""

    config: ReasoningGymConfig

    def version(self) -> str:
        check_installed(self.config)
        return importlib.metadata.version("reasoning-gym")

    def rows(self, split: str) -> Iterator[tuple[str, Mapping[str, Any] | BrokenRow]]:
        tasks = {name: self._generator(name, task) for name, task in self.config.tasks.items()}
        for number in range(self.config.size):
            for name, entries in tasks.items():
                yield f"{name}, entry {number},", _entry(name, entries, number)

    def _generator(self, name: str, task: Task) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a package that it imports
            from reasoning_gym import factory

        known = [one for one in factory.DATASETS if one != "composite"]
        if name not in known:
            reason = f"is no task of reasoning-gym: {alternatives(name, known)}"
            raise ConfigError(f"{_KEY}.tasks", name, reason)
        config = self.config
        options = {"seed": config.seed, "size": config.size}
        key = f"{_KEY}.tasks.{name}.options"
        for option in options.keys() & task.options.keys():
            raise ConfigError(f"{key}.{option}", task.options[option], "is one for all tasks")
        try:
            return factory.create_dataset(name, **options, **task.options)
        # Each task checks its options in its own way, most of them with assert.
        except Exception as error:
            reason = f"does not suit the task: {one_line(str(error) or repr(error), 200)}"
            raise ConfigError(key, dict(task.options), reason) from error


def _entry(name: str, entries: Any, number: int) -> Mapping[str, Any] | BrokenRow:
    try:
        entry = entries[number]
    except _OF_GENERATORS as error:
        return BrokenRow(f"cannot be generated: {one_line(repr(error), 200)}")
    answer = entry["answer"]
    return {
        "question": entry["question"],
        "answer": "" if answer is None else str(answer),  # of some tasks only a scorer knows
        "metadata": plain(entry["metadata"]),
        _COLUMN: name,
    }


def check_installed(config: ReasoningGymConfig) -> None:
    """Whether the package is there.

    Raises:
      ConfigError: it is not.
    """
    if importlib.util.find_spec(PACKAGE) is None:
        reason = "needs the package reasoning-gym: pip install '.[reasoning-gym]' in a checkout"
        raise ConfigError(_KEY, PACKAGE, reason)
    if config.seed + config.size > INT32_MAX:  # an entry's own seed is the sum of seed and place
        raise ConfigError(f"{_KEY}.seed", config.seed, f"must be below {INT32_MAX - config.size}")
