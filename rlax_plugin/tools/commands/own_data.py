"""Examines a user's data for ``rlax init``: its source, its lengths, and a suitable reward."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.tokens.byte_level import BYTES, SIZE
from rlax_plugin.base.tokens.rendering import ONLY_LAST
from rlax_plugin.base.types import Prompt
from rlax_plugin.build import registry_of
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.config.data_paths import names_directory
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.data.prompts.conversations import Turns
from rlax_plugin.data.prompts.source import DatasetSource
from rlax_plugin.data.prompts.table import PromptTable
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.tools.commands.answers import Answers
from rlax_plugin.tools.commands.recipe import ADAPTERS_RATE

COLUMNS = ("question", "reference")
"""Columns that ``rlax init`` can be told; options of the prompt source too."""

_FILES = {
    "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.bz2", ".jsonl.xz", ".jsonl.zst"),
    "parquet": (".parquet",),
}
_SAVED = ("dataset_info.json", "dataset_dict.json", "state.json")  # of ``datasets``
_LONGEST = 1 << 20  # tokens: nothing is left out while the data is looked at
_KEPT = 0.99  # share of the prompts, and of the answers, that must fit
_MULTIPLE = 8  # of max_prompt_tokens and max_new_tokens
_LOOKED_AT = 5000  # references
_FEW, _VERY_FEW = 2000, 10  # questions
_NUMBER = re.compile(r"\s*[-+]?[0-9][0-9,]*(\.[0-9]+)?\s*")

# Of the built-in model, which reads bytes.
_MOST_PROMPT, _MOST_ANSWER = 1024, 256  # tokens
_NO_ANSWER = 64  # tokens of a completion if nothing is known about it
_MOST_ANSWERED = 20_000  # prompts of the warm start, which are held in memory
_WARM_ROWS, _WARM_STEPS = 128, 1000
_EVERY = 2  # of the training prompts; the others are new to RL, also if these are learned by heart


_WARM_START = "warm start:"
# Of demonstrations.
_HELD_OUT = 0.05
_ROWS, _LEAST_STEPS = 32, 20  # of a step, and of an epoch if there are many
_EPOCHS, _BUILT_IN_EPOCHS = 2, 10

_PROBLEMS = 128  # of an evaluation
_NEW_TOKENS = 256  # of a task that nothing is known about


@dataclass(frozen=True, slots=True)
class Task:
    """The part of a config that describes its task.

    Attributes:
      reward: name of a reward, or the function given.
      max_prompt_tokens: maximum length; longer prompts are left out.
      trainer: options of the trainer for a tiny, untrained model.
      plugin: plug-in to name in ``rlax.plugins``; empty for a built-in one.
      notes: sentences for the user.
    """

    prompt_source: Mapping[str, Any]
    reward: str
    max_prompt_tokens: int
    vocab_size: int
    evaluation: Mapping[str, Any]
    max_new_tokens: int = _NEW_TOKENS
    trainer: Mapping[str, Any] = field(default_factory=dict)
    plugin: str = ""
    notes: tuple[str, ...] = ()


def evaluation(split: str, prompts: int) -> dict[str, Any]:
    """Returns the settings of an evaluation on a held-out split; of none if it has no prompts."""
    if not prompts:
        return {"problems": 0}
    return {"split": split, "problems": min(_PROBLEMS, prompts), "samples": 8, "k": [1, 8]}


def check_absent(answers: Answers) -> None:
    """Checks answers without data.

    Raises:
      ConfigError: they name a reward or a column of it.
    """
    if answers.reward:
        raise ConfigError("--reward", answers.reward, "needs --data, which it is to score")
    if answers.demonstrations:
        reason = "needs --data, the prompts of RL, which follows; their questions may be the same"
        raise ConfigError("--demonstrations", answers.demonstrations, reason)
    for name in COLUMNS:
        if column := getattr(answers, name):
            raise ConfigError(f"--{name}", column, "needs --data, of which it is a column")


def of_answers(
    answers: Answers,
    maxtext: Mapping[str, Any],
    built_in: bool,
    options: Mapping[str, Any] | None = None,
) -> Task:
    """Reads the data that ``rlax init`` was given; see ``read``.

    Args:
      options: of the prompt source; None: those that the answers name.

    Raises:
      ConfigError, RlaxError: see ``read``.
    """
    columns = {name: column for name in COLUMNS if (column := getattr(answers, name))}
    reading = columns if options is None else options
    try:
        return read(answers.data, answers.reward, maxtext, built_in, reading)
    except ConfigError as error:
        option = error.key.removeprefix("rlax.prompt_source.")
        if options is not None or option not in COLUMNS:
            raise
        reason = f"{error.reason}. --{option} COLUMN names it"
        raise ConfigError(error.key, error.value, reason, error.others) from None


def read(
    data: str,
    reward: str,
    maxtext: Mapping[str, Any],
    built_in: bool,
    options: Mapping[str, Any],
) -> Task:
    """Reads all of the data, as training will.

    Args:
      data: files as the prompt source ``jsonl`` or ``parquet`` takes them, or a directory that
        ``datasets`` has saved.
      reward: name of a reward, or a function; empty: ``numeric`` if the references are numbers,
        otherwise ``exact_match``.
      maxtext: the config's keys of the model.
      built_in: True for the built-in model, which reads bytes and learns from the answers first.
      options: of the prompt source, such as the columns.

    Raises:
      ConfigError: the data cannot be used, or has neither references nor a reward.
      RlaxError: the data cannot be prepared.
    """
    source = _source(data) | ({"tokenizer": BYTES} if built_in else {}) | dict(options)
    shares = _shares(_FEW, built_in)
    tables = _tables(source, shares, maxtext)
    right = _shares(sum(map(len, tables.values())), built_in)
    if right != shares:
        tables = _tables(source, right, maxtext)
    source |= {"held_out": right} if right else {}
    kept, test = tables["train"], evaluation("test", len(tables.get("test", ())))
    notes = _without_references(kept)
    if not reward:
        reward = _reward(kept, data)
        are = "numbers" if reward == "numeric" else "texts"
        notes.append(f"reward: {reward}, because the references of the data are {are}")
    notes += _commonest(kept)
    longest = _fitting(kept.lengths)
    if not built_in:
        vocabulary = maxtext.get("vocab_size", SIZE)
        return Task(source, reward, longest, vocabulary, test, notes=tuple(notes))
    new, warm = _answers(kept, len(tables.get("validation", ())), notes)
    longest = _prompts(data, kept, longest, notes)
    held_out = ", ".join(f"{len(tables[name])} {name}" for name in right) or "none"
    notes.insert(0, f"prompts: {len(kept)} to train on; held out: {held_out}")
    trainer = {"warm_start": warm} if warm else {}
    return Task(source, reward, longest, SIZE, test, new, trainer, notes=tuple(notes))


def _shares(questions: int, built_in: bool) -> dict[str, float]:
    """Returns the shares of held-out questions; the warm start needs a split of its own."""
    if questions < _VERY_FEW:
        return {}
    few = questions < _FEW
    return ({"validation": 0.1 if few else 0.05} if built_in else {}) | {
        "test": 0.2 if few else 0.05
    }


def _without_references(kept: PromptTable) -> list[str]:
    """Returns a note if no question has a reference, perhaps because its column is unknown."""
    if not len(kept) or any(prompt.reference for prompt in kept[:_LOOKED_AT]):
        return []
    columns = ", ".join(map(repr, sorted(kept[0].metadata))) or "none"
    return [
        "warning: no column was recognised as the right answers, so rewards get an empty "
        f"reference. Columns beside the question: {columns}; rlax.prompt_source.reference names "
        "the one with the answers (rlax init: --reference)"
    ]


def _commonest(kept: PromptTable) -> list[str]:
    """Returns a note if one answer is right so often that a model may learn nothing else."""
    counts = Counter(prompt.reference for prompt in kept[:_LOOKED_AT] if prompt.reference)
    total = sum(counts.values())
    if total < _VERY_FEW:
        return []
    (reference, count), *_ = counts.most_common(1)
    if count <= total / 2:
        return []
    text = one_line(reference, 40)
    return [
        f"warning: {text!r} is the reference of {count} of {total} questions: a model that always "
        f"answers it has a pass@1 of {count / total:.2f} without understanding any question"
    ]


def _fitting(lengths: Sequence[int] | np.ndarray) -> int:
    """Returns a length that suffices for nearly all."""
    longest = int(np.quantile(lengths, _KEPT, method="higher"))
    return -(-longest // _MULTIPLE) * _MULTIPLE


def _prompts(data: str, kept: PromptTable, longest: int, notes: list[str]) -> int:
    """Returns the maximum length of a prompt of the built-in model."""
    if longest <= _MOST_PROMPT:
        return longest
    left_out = int(np.sum(kept.lengths > _MOST_PROMPT))
    if left_out == len(kept):
        reason = (
            f"has only questions of more than {_MOST_PROMPT:,} bytes, which are too long for the "
            "built-in model: give --model with a directory that rlax convert has written"
        )
        raise ConfigError("--data", data, reason)
    notes.append(
        f"warning: {left_out} of {len(kept)} questions have more than {_MOST_PROMPT:,} bytes and "
        "are left out, because they are too long for the built-in model"
    )
    return _MOST_PROMPT


def _answers(kept: PromptTable, held_out: int, notes: list[str]) -> tuple[int, Mapping[str, Any]]:
    """Returns ``max_new_tokens`` of the built-in model, and the options of its warm start."""
    seen: Sequence[Prompt] = kept[:_LOOKED_AT]
    lengths = [1 + len(prompt.reference.encode()) for prompt in seen if prompt.reference]
    new = _fitting(lengths) if lengths else _NO_ANSWER
    if new > _MOST_ANSWER:
        longer = sum(length > _MOST_ANSWER for length in lengths)
        notes.append(
            f"warning: {longer} of {len(lengths)} answers have {_MOST_ANSWER} bytes or more, up to "
            f"{max(lengths) - 1:,}: a model of this size, which writes byte by byte, does not "
            "learn such answers. Completions end after max_new_tokens = "
            f"{_MOST_ANSWER}; use --model with a model that rlax convert has written"
        )
        new = _MOST_ANSWER
    usable = sum(length <= new for length in lengths)
    if usable < 2 * _EVERY or not held_out:
        notes.append(
            f"warning: {usable} training prompts have an answer to learn from, and {held_out} are "
            "held out for validation, so there is no supervised warm start, and a model with "
            "random weights is unlikely to find an answer that is rewarded"
        )
        return new, {}
    count = round(min(len(kept), _MOST_ANSWERED) * usable / len(seen) / _EVERY)
    notes.append(
        f"warm start: supervised, on the answers of about {count} training prompts, half of them, "
        "never on held-out ones"
    )
    return new, {
        "enabled": True,
        "required": False,
        "steps": _WARM_STEPS,
        "batch_rows": min(_WARM_ROWS, 1 << (max(1, usable // (2 * _EVERY)).bit_length() - 1)),
        "train_every": _EVERY,
        "train_problems": _MOST_ANSWERED if len(kept) > _MOST_ANSWERED else 0,
        "pass_at_1_to": 1.0,
    }


def with_demonstrations(
    task: Task,
    demonstrations: str,
    maxtext: Mapping[str, Any],
    built_in: bool,
    adapters: bool,
) -> Task:
    """Returns a task with a supervised training on demonstrations before RL.

    Nearly all of them fit into a row, for which completions may become longer.

    Args:
      demonstrations: files or a directory, see ``read``.
      maxtext, built_in: see ``read``.
      adapters: True if low-rank adapters are trained.

    Raises:
      ConfigError, RlaxError: they cannot be used.
    """
    option = "--demonstrations"
    source = _source(demonstrations, option) | ({"tokenizer": BYTES} if built_in else {})
    shares = {"held_out": {"validation": _HELD_OUT}}
    notes = [note for note in task.notes if not note.startswith(_WARM_START)]
    turns: Turns = "all"
    try:
        tables = _read_demonstrations(source | shares, turns, maxtext)
    except ConfigError as error:
        if ONLY_LAST not in error.reason:
            raise _of_option(error, option, demonstrations) from None
        try:
            tables = _read_demonstrations(source | shares, turns := "last", maxtext)
        except ConfigError as with_last:
            raise _of_option(with_last, option, demonstrations) from None
        notes.append(f"turns: last, because with all turns {one_line(error.reason, 300)}")
    count = len(tables["train"])
    longest = _fitting(tables["train"].lengths)
    new = max(task.max_new_tokens, longest - task.max_prompt_tokens)
    epochs, rate = (_BUILT_IN_EPOCHS, 1e-3) if built_in else (_EPOCHS, 1e-5)
    held_out = len(tables["validation"])
    warm = {
        "enabled": True,
        "data": source | (shares if held_out else {}),
        **({"turns": turns} if turns != "all" else {}),
        "epochs": epochs,
        "batch_rows": min(_ROWS, 1 << max(1, count // _LEAST_STEPS).bit_length() - 1),
        "learning_rate": rate * (ADAPTERS_RATE if adapters else 1),
        "check_every": 20,
    }
    notes.append(
        f"{_WARM_START} supervised, on {count} demonstrations, {epochs} epochs; {held_out} are "
        "held out to measure the loss"
    )
    trainer = {**task.trainer, "warm_start": warm}
    return replace(task, max_new_tokens=new, trainer=trainer, notes=tuple(notes))


def _of_option(error: ConfigError, option: str, value: str) -> ConfigError:
    """The error with the option that named the data, where it has a key of the prompts."""
    if not error.key.removeprefix("split of ").startswith("rlax.prompt_source"):
        return error
    return ConfigError(option, value, error.reason)


def _read_demonstrations(
    source: Mapping[str, Any], turns: Turns, maxtext: Mapping[str, Any]
) -> dict[str, PromptTable]:
    found = _built(source, maxtext).of_demonstrations(turns, _LONGEST)
    tables = found.prepare(found)
    if not len(tables["train"]):
        found.prompts("train")  # says why there are none
    return tables


def _source(data: str, option: str = "--data") -> dict[str, Any]:
    """Returns the prompt source of a config that reads the data."""
    for name, endings in _FILES.items():
        if data.endswith(endings):
            return {"name": name, "path": data}
    if any((Path(data) / name).is_file() for name in _SAVED):
        # Without a dot it would be a name on the hub.
        return {"name": "hf", "dataset": data if names_directory(data) else f"./{data}"}
    endings = ", ".join(itertools.chain.from_iterable(_FILES.values()))
    reason = f"must end in one of {endings}, or be a directory that datasets' save_to_disk wrote"
    raise ConfigError(option, data, reason)


def _tables(
    source: Mapping[str, Any], shares: Mapping[str, float], maxtext: Mapping[str, Any]
) -> dict[str, PromptTable]:
    """Returns the prompts of all splits; only ``train`` has at least one."""
    built = _built({**source, **({"held_out": dict(shares)} if shares else {})}, maxtext)
    tables = built.prepare(built)
    if not any(map(len, tables.values())):
        built.prompts("train")  # says why there are none
    return tables


def _built(source: Mapping[str, Any], maxtext: Mapping[str, Any]) -> DatasetSource:
    section = RlaxSection(
        prompt_source=Choice.model_validate(source),
        rewards=(RewardChoice(name="exact_match"),),
    )
    rollouts = section.rollouts.model_copy(update={"max_prompt_tokens": _LONGEST})
    section = section.model_copy(update={"rollouts": rollouts})
    context = BuildContext.outside_run(section, ResolvedConfig(section, maxtext))
    choice, key = section.prompt_source, "rlax.prompt_source"
    return registry_of(()).part("prompt_source", choice, key, context)


def _reward(prompts: PromptTable, data: str) -> str:
    references = [prompt.reference for prompt in prompts[:_LOOKED_AT]]
    if not any(references):
        reason = (
            f"must name a reward: {data} has no column of references, such as answer, that a "
            "completion could be compared with, and rlax.prompt_source.reference (rlax init: "
            "--reference) names no other"
        )
        raise ConfigError("--reward", "", reason)
    return "numeric" if all(map(_NUMBER.fullmatch, references)) else "exact_match"
