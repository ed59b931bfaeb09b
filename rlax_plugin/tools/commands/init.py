"""``rlax init``: writes a config to start from, with every key explained.

The keys outside ``rlax:`` come from a template. The section itself is written from values, and its
comments are the descriptions of the config classes.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml
from pydantic import BaseModel

from rlax_plugin.base.errors import ConfigError, alternatives
from rlax_plugin.build import Registry, registry_for, registry_of
from rlax_plugin.config import Choice, RewardChoice, RlaxSection
from rlax_plugin.config.data_paths import relative_to
from rlax_plugin.config.loading import (
    BASE,
    CONVERTED,
    ResolvedConfig,
    maxtext_configs,
    merged,
    model_keys,
)
from rlax_plugin.config.validation import validate
from rlax_plugin.ports.manager import Manager, installed
from rlax_plugin.ports.protocols import BuildContext, PromptSource
from rlax_plugin.tools.commands import own_data
from rlax_plugin.tools.commands.answers import TINY as _TINY
from rlax_plugin.tools.commands.answers import Answers, Declared, declared
from rlax_plugin.tools.commands.own_data import Task, evaluation
from rlax_plugin.tools.commands.recipe import WIDTH, Size

_Options = Mapping[str, Any] | None
_MOST_SLOTS = 256
_ENGINES = ("jetstream", "vllm")
_VLLM_STARTS_S = 600.0  # it takes minutes on a busy machine
_PATHS = ("load_parameters_path", "tokenizer_path")  # of a converted model
_WIDTH = 100  # columns
# Values of decoder_block whose modules the template's lora_module_path names; first the default.
_ADAPTED = (
    *("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3"),
)
_TINY_HEADS = 3 * 4  # layers times heads of the built-in model
_PRESET = "rlax.objective.preset"
# What lets any preset train on samples of older weights.
_CORRECTED = {
    "old_policy": "proximal",
    "corrections": [{"name": "truncated_importance_sampling"}],
}


_ARITHMETIC = Task(
    {"name": "arithmetic", "digits": 2},
    "exact_answer",
    max_prompt_tokens=8,
    max_new_tokens=5,
    vocab_size=32,
    evaluation={"split": "test", "problems": 512, "samples": 8, "k": [1, 8]},
    trainer={
        "warm_start": {
            "enabled": True,
            "learning_rate": 1e-3,
            "train_problems": 1800,
            "pass_at_1_from": 0.27,
        }
    },
)
_NUMBER_TOKENS = 8
_WORKERS = 2
_NUMBERS = ("number_tasks", "rlax_number_tasks")


def questions(answers: Mapping[str, Any]) -> Iterator[Declared]:
    """Yields the questions of ``rlax init``, at most five; what they leave out has options.

    Args:
      answers: answers to the questions so far.
    """
    choices = {choice.name: choice for choice in declared()}
    yield choices["model"]
    if _can_read(str(answers["model"])):
        yield choices["data"]
    if answers.get("data"):
        yield choices["reward"]
    else:
        yield choices["task"]._replace(default=_usual_task(str(answers["model"])))
    yield choices["preset"]
    yield choices["steps"]


def _can_read(model: str) -> bool:
    """True if the model has a tokenizer: a converted one has, and the built-in one reads bytes."""
    return model == _TINY or _is_directory(model)


def _usual_task(model: str) -> str:
    return _NUMBERS[0] if _is_directory(model) else "arithmetic"


def check_target(path: Path, force: bool) -> None:
    """Rejects a file that MaxText would not read, or that exists.

    Raises:
      ConfigError: the file's name does not end in .yml, or the file exists.
    """
    if path.suffix != ".yml":
        raise ConfigError("FILE", str(path), "must end in .yml, as MaxText requires")
    if path.exists() and not force:
        raise ConfigError("FILE", str(path), "exists: choose another name, or --force replaces it")


def write(path: Path, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes a config after checking it.

    Args:
      path: path of the file; its name becomes ``run_name``.
      given: fields of ``Answers``.

    Returns:
      Sentences for the user on what was chosen, and why.

    Raises:
      ConfigError: an answer is wrong, or the answers contradict each other.
      PluginError: the task's plug-in cannot be loaded.
    """
    text, notes = config_text(path, Answers(**given))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("FILE", str(path), f"cannot be written: {error.strerror}") from None
    return notes


def config_text(
    path: Path, answers: Answers, source: _Options = None
) -> tuple[str, tuple[str, ...]]:
    """Returns the commented config of a file, and sentences for the user.

    Args:
      source: options with which the prompt source reads the data.

    Raises:
      ConfigError, PluginError: see ``write``.
    """
    tiny = answers.model == _TINY
    model = _read_converted(answers.model) if _is_directory(answers.model) else None
    if not tiny and model is None:
        _check_model(answers.model)
    if answers.lora and tiny:
        reason = "needs a pretrained model as the base: give --model, the built-in one is random"
        raise ConfigError("--lora", True, reason)
    task = _task(answers, model, source)
    keys = model.keys if model else model_keys(answers.model)
    block = keys.get("decoder_block", _ADAPTED[0])
    if answers.lora and block not in _ADAPTED:
        reason = f"is not for decoder_block: {block} of {answers.model}, whose modules have other "
        reason += f"names; it is for {', '.join(_ADAPTED)}. Set lora.lora_module_path by hand"
        raise ConfigError("--lora", True, reason)
    size = Size(
        groups=answers.groups_per_step or (64 if tiny else 16),
        group_size=answers.group_size,
        steps=answers.steps,
        staleness=answers.staleness,
        width=keys.get("base_emb_dim", WIDTH),
        workers=1 if _colocated(answers) else answers.workers or _WORKERS,
        adapters=answers.lora,
    )
    values = relative_to(_values(answers, task, tiny, size, path.parent), path.parent)
    section = validate(RlaxSection, values, "rlax")
    registry = registry_for(section)
    registry.validate(section)
    outside = BuildContext.outside_run(section)
    preset = registry.part("objective", Choice(name=answers.preset), _PRESET, outside)
    if preset.version:  # of a library, which trains on every group of prompts in shuffled order
        values["curation"] = {"sampler": {"name": "shuffled"}, "filters": []}
        section = validate(RlaxSection, values, "rlax")
    try:
        registry.slots(BuildContext.outside_run(section))
    except ConfigError:
        if answers.staleness == 1:
            raise
        # Samples of older weights need a correction, and this preset has none.
        values["objective"] |= _CORRECTED
        section = validate(RlaxSection, values, "rlax")
        registry.validate(section)
        registry.slots(BuildContext.outside_run(section))
    # The built-in model keeps the weights of all its attention for the backward pass.
    logits = model.keys["vocab_size"] if model else task.vocab_size
    logits += _TINY_HEADS * section.row_tokens if tiny else 0
    writer = _CommentedYaml(registry, {use.key: use.kind for use in registry.uses(section)})
    template = jinja2.Template(
        files("rlax_plugin.tools.commands").joinpath("starter.yml.j2").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    text = template.render(
        run_name=_in_yaml(path.stem),
        output_directory=_in_yaml(answers.output_directory),
        steps=answers.steps,
        model=answers.model,
        tiny_width=WIDTH,
        vllm=answers.engine == "vllm",
        converted=model.lines if model else None,
        arithmetic=task is _ARITHMETIC,
        vocab_size=task.vocab_size,
        rows=section.batch_rows,
        micro_batches=size.parts(section.row_tokens, logits) if model or tiny else 1,
        row_tokens=section.row_tokens,
        learning_rate=size.learning_rate_text,
        warmup_fraction=size.warmup_fraction,
        final_fraction=0.05 if tiny else 1.0,
        clipping=0.0 if tiny else 1.0,
        lora=answers.lora,
        # Also of the training on demonstrations, which has more steps.
        checkpoint_period=50 if answers.demonstrations else min(50, answers.steps),
        rlax="\n".join(["rlax:", *writer.lines(values, RlaxSection, "rlax")]),
    )
    return text, task.notes


def _colocated(answers: Answers) -> bool:
    """True if the config is for an accelerator, which only one process can have.

    That is so for MaxText's own models, unless workers are asked for.
    """
    return answers.workers is None and _own(answers)


def _own(answers: Answers) -> bool:
    """True for a model of MaxText's own, whose config has ``hardware: tpu``."""
    return answers.model != _TINY and not _is_directory(answers.model)


def _check_model(name: str) -> None:
    folder = maxtext_configs()
    models = sorted(path.stem for path in (folder / "models").glob("*.yml")) if folder else []
    if name not in models:
        others = alternatives(name, [_TINY, *models])
        reason = f"no such directory, and no such model of MaxText; {others}"
        raise ConfigError("--model", name, reason)


def _task(answers: Answers, model: _Converted | None, source: _Options) -> Task:
    """Returns the chosen task.

    Raises:
      ConfigError, PluginError: see ``write``; or a converted model lacks tokens of the task.
    """
    keys = model.keys if model else {}
    if answers.data:
        return _of_data(answers, model, source)
    own_data.check_absent(answers)
    name = answers.task or _usual_task(answers.model)
    if name in _NUMBERS:
        task = replace(_of(_NUMBERS[1], keys, "exact_answer"), max_new_tokens=_NUMBER_TOKENS)
    elif name not in ("arithmetic", "rlax_arithmetic"):
        task = _of(name, keys)
    elif model is None:
        return _ARITHMETIC
    else:
        reason = (
            "has an alphabet of its own, whose ids are other words to a pretrained model: name a "
            "plug-in whose prompts are made with the model's tokenizer"
        )
        raise ConfigError("--task", name, reason)
    if model and task.vocab_size > model.keys["vocab_size"]:
        reason = (
            f"has token ids up to {task.vocab_size - 1}, and the model in {answers.model} has only "
            f"{model.keys['vocab_size']} tokens"
        )
        raise ConfigError("--task", name, reason)
    return task


def _of_data(answers: Answers, model: _Converted | None, source: _Options) -> Task:
    """Returns a task made of the user's own data and a reward.

    Raises:
      ConfigError: see ``write``; or a task is given as well, or the data has no tokenizer.
    """
    if answers.task not in ("", _usual_task(answers.model)):
        raise ConfigError("--task", answers.task, "must not be given together with --data")
    if not _can_read(answers.model):
        reason = (
            "needs a tokenizer: give --model with a directory that rlax convert has written, or "
            "leave --model out for the built-in model, which reads bytes"
        )
        raise ConfigError("--data", answers.data, reason)
    keys, built_in = model.keys if model else {}, model is None
    task = own_data.of_answers(answers, keys, built_in, source)
    if not answers.demonstrations:
        return task
    return own_data.with_demonstrations(task, answers.demonstrations, keys, built_in, answers.lora)


def _of(plugin: str, maxtext: Mapping[str, Any], reward: str = "") -> Task:
    """Returns the task of a plug-in, from its prompts.

    Args:
      maxtext: the config's keys of the model.
      reward: name of the reward; empty: the plug-in's own.
    """
    registry = Registry(Manager([plugin]))
    source = _only(registry, "prompt_source", plugin)
    reward = reward or _only(registry, "reward", plugin)
    section = RlaxSection(
        plugins=(plugin,), prompt_source=Choice(name=source), rewards=(RewardChoice(name=reward),)
    )
    built = registry.part(
        "prompt_source",
        section.prompt_source,
        "rlax.prompt_source",
        BuildContext.outside_run(section, ResolvedConfig(section, maxtext)),
    )
    prompts = built.prompts("train")
    if not prompts:
        raise ConfigError("--task", plugin, f"the prompt source {source!r} has no prompts")
    largest = max(
        [*(int(p.tokens.max()) for p in prompts if len(p.tokens)), *built.stop_ids], default=0
    )
    listed = not any(p.name == plugin and p.built_in for p in installed())
    offers = registry_of((plugin,)).offers
    if source not in offers["prompt_source"]:  # a built-in plug-in has one of that name
        source = f"{plugin}:{source}"
    if reward not in offers["reward"]:
        reward = f"{plugin}:{reward}"
    held_out = ((split, _count(built, split)) for split in ("test", "validation"))
    return Task(
        {"name": source},
        reward,
        max_prompt_tokens=max(len(prompt.tokens) for prompt in prompts),
        vocab_size=largest + 1,
        evaluation=evaluation(*next((split for split in held_out if split[1]), ("", 0))),
        plugin=plugin if listed else "",
    )


def _count(source: PromptSource, split: str) -> int:
    try:
        return len(source.prompts(split))
    except ConfigError:  # there is no such split
        return 0


def _only(registry: Registry, kind: str, plugin: str) -> str:
    names = sorted(registry.offers[kind])
    if len(names) != 1:
        reason = f"must offer exactly one {kind.replace('_', ' ')} to be a task, but offers"
        raise ConfigError("--task", plugin, f"{reason} {', '.join(names) or 'none'}")
    return names[0]


def _reward(named: str, directory: Path) -> dict[str, Any]:
    """Returns an entry of ``rlax.rewards``; a file is named relative to the config's directory."""
    file, _, name = named.rpartition(":")
    if not file.endswith(".py"):
        return {"name": named}
    path = Path(file).resolve().relative_to(directory.resolve(), walk_up=True)
    return {"function": f"{path}:{name}"}


def _engine(answers: Answers) -> dict[str, Any]:
    """Returns ``rlax.rollouts.engine``.

    Raises:
      ConfigError: there is no such engine, or vLLM's Python is missing or has no use, or the
        trainer has the TPU that vLLM would need.
    """
    name, python = answers.engine, answers.vllm_python
    if name not in _ENGINES:
        raise ConfigError("--engine", name, alternatives(name, _ENGINES))
    if (name == "vllm") != bool(python):
        reason = "--engine vllm and the path of the Python that has vLLM need each other"
        raise ConfigError("--vllm-python", python, reason)
    if python and _own(answers):
        reason = (
            "starts on CPUs and GPUs, and a config for a model of MaxText's own has hardware: tpu: "
            "give --model with a directory that rlax convert has written"
        )
        raise ConfigError("--engine", name, reason)
    return {"name": name, "python": str(Path(python).absolute())} if python else {"name": name}


def _values(
    answers: Answers, task: Task, tiny: bool, size: Size, directory: Path
) -> dict[str, Any]:
    """Returns the section ``rlax:`` as a config in ``directory`` has it."""
    filters = [{"name": "mixed_outcome"}] if answers.group_size > 1 else []
    local = {"name": "local", "workers": size.workers}
    return {
        **({"plugins": [task.plugin]} if task.plugin else {}),
        "seed": 0,
        "prompt_source": task.prompt_source,
        "rewards": [_reward(task.reward, directory)],
        "rollouts": {
            "engine": _engine(answers),
            "group_size": answers.group_size,
            "groups_per_step": size.groups,
            "max_prompt_tokens": task.max_prompt_tokens,
            "max_new_tokens": answers.max_new_tokens or task.max_new_tokens,
            "temperature": 1.0,
            "slots": min(_MOST_SLOTS, -(-size.rows // size.workers)),
        },
        "staleness": {"reload_every": 1, "max_staleness": answers.staleness},
        "curation": {"sampler": {"name": "learnability"}, "filters": filters},
        "objective": {"preset": answers.preset},
        "weights": {"store": {"name": "orbax"}, "keep": 2},
        "evaluation": size.evaluation(task.evaluation),
        "launcher": {"name": "colocated"} if _colocated(answers) else local,
        **({"deadlines": {"startup_s": _VLLM_STARTS_S}} if answers.engine == "vllm" else {}),
        "trackers": [{"name": "tensorboard"}],
        "trainer": {
            "name": "maxtext",
            **(task.trainer if tiny or answers.demonstrations else {}),
        },
    }


# A directory that ``rlax convert`` wrote.


@dataclass(frozen=True, slots=True)
class _Converted:
    """The config's keys of a converted model.

    Attributes:
      keys: key -> value, as in a config.
      lines: the same keys as text, each with a comment.
    """

    keys: Mapping[str, Any]
    lines: tuple[str, ...]


def _is_directory(model: str) -> bool:
    """True if an answer to "which model" is a directory, not a name."""
    return "/" in model or Path(model).is_dir()


def _read_converted(directory: str) -> _Converted:
    path = Path(directory) / CONVERTED
    if not path.is_file():
        reason = f"has no {CONVERTED}: it must be a directory that rlax convert has written"
        raise ConfigError("--model", directory, reason)
    keys = merged(path, ())
    for key in ("vocab_size", "base_emb_dim"):
        number = keys.get(key)
        if type(number) is not int or number < 1:
            raise ConfigError(f"{key} in {path}", number, "must be a positive number")
    for key in _PATHS:
        if (named := keys.get(key)) is not None and not Path(str(named)).exists():
            reason = "does not exist; if the directory was moved, correct its path there"
            raise ConfigError(f"{key} in {path}", named, reason)
    lines = path.read_text(encoding="utf-8").splitlines()
    return _Converted(keys, tuple(line for line in lines if not line.startswith(("#", BASE))))


# The section as text.


@dataclass(frozen=True, slots=True)
class _CommentedYaml:
    """Writes values as YAML, each key with the description of its config class."""

    registry: Registry
    kinds: Mapping[str, str]  # dotted key -> kind of the part that is chosen there

    def lines(
        self, values: Mapping[str, Any], model: type[BaseModel], key: str, depth: int = 1
    ) -> Iterator[str]:
        """Yields the lines of a section.

        Args:
          model: config class whose fields are the keys of ``values``.
          key: dotted key of the section.
        """
        for name, value in values.items():
            here, about = f"{key}.{name}", model.model_fields[name].description or ""
            kind = self.kinds.get(here) if isinstance(value, Mapping) else None
            if name == "plugins":
                yield from _with_comment(f"{name}:", about, depth)
                for plugin in value:
                    yield from _with_comment(f"- {plugin}", self._about_plugin(plugin), depth + 1)
            elif kind and len(value) > 1:
                yield from _with_comment(f"{name}:", about, depth)
                yield f"{'  ' * (depth + 1)}name: {value['name']}"
                options = {option: v for option, v in value.items() if option != "name"}
                offer = self.registry.offer(kind, value["name"], here)
                yield from self.lines(options, offer.extension.config_class, here, depth + 1)
            elif not kind and issubclass(section := _type(model, name), BaseModel):
                about = (inspect.getdoc(section) or "").partition("\n")[0]
                yield from _with_comment(f"{name}:", about, depth)
                yield from self.lines(value, section, here, depth + 1)
            else:
                yield from _with_comment(f"{name}: {_in_yaml(value)}", about, depth)

    def _about_plugin(self, name: str) -> str:
        """Returns the docstring of the plug-in's module."""
        module = self.registry.manager.origin(name).target.partition(":")[0]
        about = inspect.getdoc(importlib.import_module(module)) or ""
        return about.partition("\n")[0].replace("``", "`")


def _type(model: type[BaseModel], name: str) -> type:
    """Returns the type of a key's value, as far as its default tells."""
    return type(model.model_fields[name].get_default(call_default_factory=True))


def _with_comment(text: str, about: str, depth: int) -> Iterator[str]:
    """Yields a line with a comment after it, or above it if it is too long."""
    indent = "  " * depth
    about = about.rstrip(".")
    if len(line := f"{indent}{text}  # {about}".removesuffix("  # ")) <= _WIDTH:
        yield line
        return
    prefix = f"{indent}# "
    yield from textwrap.wrap(about, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)
    yield f"{indent}{text}"


def _in_yaml(value: Any) -> str:
    """Returns a value in YAML's flow style, on one line."""
    # As the one item of a list: a text alone would be a document, and end with "...".
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
