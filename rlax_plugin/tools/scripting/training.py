"""``rlax_plugin.train``: writes the config that a call implies, and starts it."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.base.tokens.byte_level import BYTES
from rlax_plugin.build import registry_for
from rlax_plugin.config.data_paths import relative_to
from rlax_plugin.config.loading import check_run_name, merged, resolve
from rlax_plugin.config.yaml_values import dumped
from rlax_plugin.run.start.run_directory import run_directory
from rlax_plugin.tools.commands import check, init, own_data
from rlax_plugin.tools.commands.answers import declared
from rlax_plugin.tools.scripting.given_data import given_data
from rlax_plugin.tools.scripting.given_rewards import GivenRewards, Reward, given_rewards
from rlax_plugin.tools.scripting.handle import Run
from rlax_plugin.tools.scripting.literals import described
from rlax_plugin.tools.scripting.processes import Started
from rlax_plugin.tools.scripting.settings import expanded, flat, nested
from rlax_plugin.tools.scripting.written_config import FOLDERS, WrittenConfig, free_name

_INITIAL = "init.yml"  # what rlax init writes
_LOG = "train.log"
_STEPS, _PRESET, _OUTPUT = "steps", "rlax.objective.preset", "base_output_directory"
_SOURCE = "rlax.prompt_source"
_OF_DATA = tuple(f"{_SOURCE}.{key}" for key in ("name", "path", "dataset"))
# Keys whose values rlax init asks for, because other keys depend on them.
_ANSWERS = {
    _STEPS: "steps",
    _PRESET: "preset",
    _OUTPUT: "output_directory",
    "rlax.launcher.workers": "workers",
    "rlax.staleness.max_staleness": "staleness",
    "rlax.rollouts.group_size": "group_size",
    "rlax.rollouts.groups_per_step": "groups_per_step",
    "rlax.rollouts.max_new_tokens": "max_new_tokens",
}
# Options of sources of rows that say how a row is read, and hold for other rows too.
_OF_ROWS = ("question", "reference", "metadata", "domain", "chat", "system", "template_arguments")
_ARGUMENTS = {_STEPS: "steps", _PRESET: "preset"}
# Sections whose keys are told apart even if they are given as one mapping.
_SECTIONS = ("rlax", _SOURCE, *sorted({key.rpartition(".")[0] for key in _ANSWERS if "." in key}))


def train(
    *,
    model: str | os.PathLike[str] | None = None,
    data: Any = None,
    rewards: Reward | Sequence[Reward] = (),
    preset: str | None = None,
    steps: int | None = None,
    config: Mapping[str, Any] | None = None,
    name: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Run:
    """Writes a config, and starts ``rlax train`` with it as a child process.

    The arguments are checked before anything is started. The run stops, with a checkpoint, when
    this process ends; the same call, or ``rlax train`` with the config, continues it.

    Args:
      model: a directory that ``rlax convert`` has written, a model of MaxText by its name, a config
        (.yml) to start from, or None for a small built-in model.
      data: files (.jsonl or .parquet), a directory that ``datasets`` has saved, a list of dicts, or
        a ``datasets.Dataset``; None: the task of ``rlax init``, or what the config has.
      rewards: functions, names such as "numeric", and entries of ``rlax.rewards`` such as
        {"function": correct, "weight": 0.5}; empty: as ``rlax init`` chooses, or the config says.
      preset: preset of the objective; None: dapo, or that of the config.
      steps: number of weight updates; None: that of ``rlax init``, or of the config.
      config: other keys, with dotted names.
      name: name of the run; None: run-1, or the first such name that is free.
      folder: folder for the config; None: ``configs/NAME``.

    Returns:
      The handle of the run, which is starting.

    Raises:
      ConfigError: an argument is wrong; its ``key`` names the argument.
      PluginError: a plug-in cannot be loaded.
    """
    settings = _settings({} if config is None else config, {_STEPS: steps, _PRESET: preset})
    rows, scored = given_data(data), given_rewards(rewards)
    for key in _OF_DATA if data is not None else ():
        if key in settings:
            raise ConfigError(f"config[{key!r}]", settings[key], "is given together with data")
    if scored.entries and "rlax.rewards" in settings:
        raise ConfigError("config['rlax.rewards']", None, "is given together with rewards")
    base = _text("model", model)
    from_config = base.endswith((".yml", ".yaml"))
    if _OUTPUT in settings and not settings[_OUTPUT]:
        reason = "must be a path or URL, such as runs"
        raise ConfigError(f"config[{_OUTPUT!r}]", settings[_OUTPUT], reason)
    output = str(settings.get(_OUTPUT) or (_output_directory(base) if from_config else "runs"))
    if name is None:
        name = free_name(Path(FOLDERS), output)
    _check_name(name)
    place = Path(FOLDERS, name) if folder is None else Path(_text("folder", folder))
    written = WrittenConfig(name, place, f"{output.rstrip('/')}/{name}")
    try:
        if rows.name:
            rows.path = os.fspath(written.put(rows.name, rows.content))
        for one, content in scored.files.items():
            written.put(one, content)
        notes: tuple[str, ...] = ()
        if from_config:
            settings = _on_a_config(base, rows.path, settings, written)
        else:
            settings, notes = _on_init(base, rows.path, scored, settings, written)
        if scored.entries:
            settings["rlax.rewards"] = scored.entries
        start = f"Written by rlax_plugin.train; rlax train {written.path} starts the same run."
        heading = "".join(f"# {harmless(line)}\n" for line in (start, *notes))
        content = relative_to(nested(settings), written.folder)
        written.put(written.path.name, (heading + dumped(content)).encode())
        with _as_rewards(scored):
            resolved = resolve(written.path)
            check.examine(resolved, registry_for(resolved.section))
        directory = run_directory(resolved.maxtext)
        written.finish()
    except BaseException:
        written.discard()
        raise
    for note in notes:
        if note.startswith("warning: "):
            warnings.warn(note.removeprefix("warning: "), stacklevel=2)
    started = Started(written.path, place / _LOG)
    return Run(directory, config=resolved, path=written.path, started=started)


def _settings(config: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all dotted keys that the call sets."""
    found = flat(expanded(flat(config), _SECTIONS))
    for key, value in arguments.items():
        if value is None:
            continue
        if type(value) is bool:  # which Python counts as a number
            kind = "a whole number" if key == _STEPS else "text"
            raise ConfigError(_ARGUMENTS[key], value, f"must be {kind}")
        if key in found:
            reason = f"is given together with {_ARGUMENTS[key]}: give one of them"
            raise ConfigError(f"config[{key!r}]", found[key], reason)
        found[key] = value
    if "run_name" in found:
        raise ConfigError("config['run_name']", found["run_name"], "must be given as name")
    return found


def _text(argument: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str | os.PathLike) or not (text := os.fspath(value)):
        shown = value if isinstance(value, str) else described(value)
        raise ConfigError(argument, shown, "must be a name or a path")
    return str(text)


def _check_name(name: Any) -> None:
    """Checks that a folder can have the name, before ``resolve`` reads it as ``run_name``."""
    if not isinstance(name, str) or not name:
        raise ConfigError("name", name, "must be the name of a directory")
    try:
        check_run_name(name)
    except ConfigError as error:
        raise ConfigError("name", name, error.reason) from None


def _output_directory(base: str) -> str:
    found = merged(base).get(_OUTPUT)
    if not found:
        reason = f"has no {_OUTPUT}: give it in config, such as {{{_OUTPUT!r}: 'runs'}}"
        raise ConfigError("model", base, reason)
    return str(found)


def _on_a_config(
    base: str, data: str, settings: Mapping[str, Any], written: WrittenConfig
) -> dict[str, Any]:
    """Returns the keys of a config that is based on the user's own one."""
    found: dict[str, Any] = {
        "base_config": os.path.relpath(base, written.folder),
        "run_name": written.path.stem,
    }
    if data:
        there = resolve(base)
        theirs = there.section.prompt_source.options
        options = {key: theirs[key] for key in _OF_ROWS if key in theirs} | _reading(settings)
        reads_bytes = theirs.get("tokenizer") == BYTES
        with _as_arguments():
            read = own_data.read(data, "exact_match", there.maxtext, reads_bytes, options)
        found |= {f"{_SOURCE}.{key}": value for key, value in read.prompt_source.items()}
    return {**found, **settings}


def _on_init(
    model: str,
    data: str,
    rewards: GivenRewards,
    settings: Mapping[str, Any],
    written: WrittenConfig,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Writes what ``rlax init`` would write.

    Returns:
      The keys of a config that is based on it, and sentences for the user.
    """
    answers: dict[str, Any] = {_ANSWERS[k]: v for k, v in settings.items() if k in _ANSWERS}
    if model:
        answers["model"] = model
    if data:
        answers["data"] = data
        if rewards.entries:
            answers["reward"] = _named(rewards.entries[0], written.folder)
    with _as_arguments():
        for one in declared():
            value = answers.get(one.name, one.default)
            if value is not None and type(value) is not one.type:
                kind = "a whole number" if one.type is int else "text"
                raise ConfigError(one.name, value, f"must be {kind}")
        text, notes = init.config_text(written.path, init.Answers(**answers), _reading(settings))
    written.put(_INITIAL, text.encode())
    others = {key: value for key, value in settings.items() if key not in _ANSWERS}
    return {"base_config": _INITIAL, **others}, notes


def _reading(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options that say how rows are read, and not which ones are trained on."""
    start, others = f"{_SOURCE}.", ("held_out", "max_tokens", "weights")
    found = {k.removeprefix(start): v for k, v in settings.items() if k.startswith(start)}
    return {k: v for k, v in found.items() if k not in others}


def _named(entry: Mapping[str, Any], folder: Path) -> str:
    """Returns a reward as ``rlax init --reward`` takes it, which its own config replaces."""
    if (function := str(entry.get("function", ""))) and ".py:" in function:
        return os.path.join(folder, function)
    return str(entry.get("name", "exact_match"))


@contextmanager
def _as_arguments() -> Iterator[None]:
    """Makes errors about options of ``rlax init`` name the arguments of ``train``."""
    try:
        yield
    except ConfigError as error:
        key = error.key.removeprefix("--").replace("-", "_")
        for dotted, answer in _ANSWERS.items():
            if key == answer and dotted not in _ARGUMENTS:
                key = f"config[{dotted!r}]"
        reason = re.sub(r"--(\w+)", r"\1", error.reason)
        raise ConfigError(key, error.value, reason, error.others) from None


@contextmanager
def _as_rewards(given: GivenRewards) -> Iterator[None]:
    """Makes errors about ``rlax.rewards`` name the argument, if it was given."""
    try:
        yield
    except ConfigError as error:
        key = re.sub(r"^rlax\.rewards\.(\d+)", r"rewards[\1]", error.key)
        if key == error.key or not given.entries:
            raise
        raise ConfigError(key, error.value, error.reason, error.others) from None
