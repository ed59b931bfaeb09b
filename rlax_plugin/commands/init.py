"""``rlax init``: a config to start from, with every key explained.

What is outside ``rlax:`` is a template; the section itself is written from values, and its comments
are the descriptions of the config classes.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import yaml
from pydantic import BaseModel, Field

from rlax_plugin.build import Registry, registry_for, registry_of
from rlax_plugin.config import Choice, PositiveInt, RlaxSection, Section
from rlax_plugin.config.loading import maxtext_configs
from rlax_plugin.config.validation import validate
from rlax_plugin.errors import ConfigError, alternatives
from rlax_plugin.ports.manager import Manager, installed
from rlax_plugin.ports.protocols import BuildContext, PromptSource

_WIDTH = 100  # columns
_TINY = "tiny"
_MOST_SLOTS = 256
# What lets any preset train on samples of older weights.
_CORRECTED = {
    "old_policy": "proximal",
    "corrections": [{"name": "truncated_importance_sampling"}],
}


class Answers(Section):
    """What a config is written from; what is null depends on the task and the model."""

    task: str = Field(
        "arithmetic", description="task: arithmetic, or a plug-in with a prompt source and a reward"
    )
    model: str = Field(_TINY, description="model: tiny, or one of MaxText's, such as llama3.1-8b")
    preset: str = Field("dapo", description="preset of the objective")
    steps: PositiveInt = Field(320, description="number of RL steps")
    workers: PositiveInt = Field(2, description="number of rollout workers")
    staleness: PositiveInt = Field(
        1, description="maximum staleness of a sample, in weight versions (1: on-policy)"
    )
    output_directory: str = Field("runs", description="directory for runs")
    group_size: PositiveInt = Field(8, description="number of samples per prompt")
    groups_per_step: PositiveInt | None = Field(None, description="number of prompts per step")
    max_new_tokens: PositiveInt | None = Field(
        None, description="maximum length of a completion, in tokens"
    )


@dataclass(frozen=True, slots=True)
class Question:
    """One of ``Answers``: ``name`` of the field, what to ask, and the default."""

    name: str
    text: str
    default: str | int


@dataclass(frozen=True, slots=True)
class _Task:
    """What a config says of its task.

    Attributes:
      plugin: to be listed; empty for a built-in one.
      trainer: options of the trainer, where the model is a tiny one that has learned nothing.
    """

    plugin: str
    prompt_source: Mapping[str, Any]
    reward: str
    max_prompt_tokens: int
    max_new_tokens: int
    vocab_size: int
    evaluation: Mapping[str, Any]
    trainer: Mapping[str, Any] = field(default_factory=dict)


_ARITHMETIC = _Task(
    "",
    {"name": "arithmetic", "digits": 2},
    "exact_answer",
    max_prompt_tokens=8,
    max_new_tokens=5,
    vocab_size=32,
    evaluation={"split": "test", "problems": 512, "samples": 16, "k": [1, 8]},
    trainer={
        "warm_start": {
            "enabled": True,
            "learning_rate": 1e-3,
            "train_problems": 1800,
            "pass_at_1_from": 0.27,
        }
    },
)
_NEW_TOKENS = 256  # of a task that nothing is known about


def questions() -> tuple[Question, ...]:
    """What ``rlax init`` asks: every answer whose default does not depend on another."""
    return tuple(
        Question(name, one.description or name, one.default)
        for name, one in Answers.model_fields.items()
        if one.default is not None
    )


def check_target(path: Path, force: bool) -> None:
    """Rejects a file that MaxText would not read, or that exists.

    Raises:
      ConfigError: see above.
    """
    if path.suffix != ".yml":
        raise ConfigError("FILE", str(path), "must end in .yml, as MaxText requires")
    if path.exists() and not force:
        raise ConfigError("FILE", str(path), "exists: choose another name, or --force replaces it")


def write(path: Path, given: Mapping[str, Any]) -> None:
    """Writes a config, once it is known to be right.

    Args:
      path: of the file; its name becomes ``run_name``.
      given: fields of ``Answers``.

    Raises:
      ConfigError: an answer is wrong, or they do not go together.
      PluginError: the task's plug-in cannot be loaded.
    """
    text = config_text(path.stem, validate(Answers, given, "rlax init"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("FILE", str(path), f"cannot be written: {error.strerror}") from None


def config_text(run_name: str, answers: Answers) -> str:
    """The commented config.

    Raises:
      ConfigError, PluginError: as ``write``.
    """
    tiny = answers.model == _TINY
    if not tiny:
        _check_model(answers.model)
    task = _ARITHMETIC if answers.task in ("arithmetic", "rlax_arithmetic") else _of(answers.task)
    values = _values(answers, task, tiny)
    section = validate(RlaxSection, values, "rlax")
    registry = registry_for(section)
    registry.validate(section)
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
    writer = _Writer(registry, {use.key: use.kind for use in registry.uses(section)})
    template = jinja2.Template(
        files("rlax_plugin.commands").joinpath("starter.yml.j2").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    return template.render(
        run_name=_yaml(run_name),
        output_directory=_yaml(answers.output_directory),
        steps=answers.steps,
        model=answers.model,
        arithmetic=task is _ARITHMETIC,
        vocab_size=task.vocab_size,
        rows=section.batch_rows,
        row_tokens=section.row_tokens,
        learning_rate="5.e-4" if tiny else "1.e-6",
        final_fraction=0.05 if tiny else 1.0,
        clipping=0.0 if tiny else 1.0,
        checkpoint_period=min(50, answers.steps),
        rlax="\n".join(["rlax:", *writer.lines(values, RlaxSection, "rlax")]),
    )


def _check_model(name: str) -> None:
    folder = maxtext_configs()
    known = sorted(path.stem for path in (folder / "models").glob("*.yml")) if folder else []
    if name not in known:
        reason = f"no such model of MaxText; {alternatives(name, [_TINY, *known])}"
        raise ConfigError("--model", name, reason)


def _of(plugin: str) -> _Task:
    """The task of a plug-in, from its prompts."""
    registry = Registry(Manager([plugin]))
    source, reward = (_only(registry, kind, plugin) for kind in ("prompt_source", "reward"))
    section = RlaxSection(
        plugins=(plugin,), prompt_source=Choice(name=source), rewards=(Choice(name=reward),)
    )
    built = registry.part(
        "prompt_source",
        section.prompt_source,
        "rlax.prompt_source",
        BuildContext.outside_run(section),
    )
    prompts = built.prompts("train")
    if not prompts:
        raise ConfigError("--task", plugin, f"the prompt source {source!r} has no prompts")
    largest = max(
        [*(int(p.tokens.max()) for p in prompts if len(p.tokens)), *built.stop_ids], default=0
    )
    listed = not any(one.name == plugin and one.built_in for one in installed())
    known = registry_of((plugin,)).offers
    if source not in known["prompt_source"]:  # a built-in plug-in has one of that name
        source = f"{plugin}:{source}"
    if reward not in known["reward"]:
        reward = f"{plugin}:{reward}"
    return _Task(
        plugin if listed else "",
        {"name": source},
        reward,
        max_prompt_tokens=max(len(prompt.tokens) for prompt in prompts),
        max_new_tokens=_NEW_TOKENS,
        vocab_size=largest + 1,
        evaluation=_evaluation(built),
    )


def _evaluation(source: PromptSource) -> dict[str, Any]:
    """On the first split that holds something."""
    for split in ("test", "validation"):
        try:
            prompts = source.prompts(split)
        except ConfigError:  # there is no such split
            continue
        if prompts:
            return {"split": split, "problems": min(128, len(prompts)), "samples": 8, "k": [1, 8]}
    return {"problems": 0}


def _only(registry: Registry, kind: str, plugin: str) -> str:
    names = sorted(registry.offers[kind])
    if len(names) != 1:
        what = f"must offer exactly one {kind.replace('_', ' ')} to be a task, but offers"
        raise ConfigError("--task", plugin, f"{what} {', '.join(names) or 'none'}")
    return names[0]


def _values(answers: Answers, task: _Task, tiny: bool) -> dict[str, Any]:
    """The section ``rlax:`` as a config would have it."""
    groups = answers.groups_per_step or (64 if tiny else 16)
    samples = groups * answers.group_size
    filters = [{"name": "mixed_outcome"}] if answers.group_size > 1 else []
    return {
        **({"plugins": [task.plugin]} if task.plugin else {}),
        "seed": 0,
        "prompt_source": dict(task.prompt_source),
        "rewards": [{"name": task.reward}],
        "rollouts": {
            "engine": {"name": "jetstream"},
            "group_size": answers.group_size,
            "groups_per_step": groups,
            "max_prompt_tokens": task.max_prompt_tokens,
            "max_new_tokens": answers.max_new_tokens or task.max_new_tokens,
            "temperature": 1.0,
            "slots": min(_MOST_SLOTS, -(-samples // answers.workers)),
        },
        "staleness": {"reload_every": 1, "max_staleness": answers.staleness},
        "curation": {"sampler": {"name": "learnability"}, "filters": filters},
        "objective": {"preset": answers.preset},
        "weights": {"store": {"name": "orbax"}, "keep": 2},
        "evaluation": dict(task.evaluation),
        "launcher": {"name": "local", "workers": answers.workers},
        "trackers": [{"name": "tensorboard"}],
        "trainer": {"name": "maxtext", **(task.trainer if tiny else {})},
    }


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes values as YAML, each key with the description of its config class."""

    registry: Registry
    kinds: Mapping[str, str]  # dotted key -> kind of the part that is chosen there

    def lines(
        self, values: Mapping[str, Any], model: type[BaseModel], key: str, depth: int = 1
    ) -> Iterator[str]:
        """Lines of a section.

        Args:
          model: whose fields are the keys of ``values``.
          key: dotted, of the section.
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
                options = {option: given for option, given in value.items() if option != "name"}
                offer = self.registry.offer(kind, value["name"], here)
                yield from self.lines(options, offer.extension.config_class, here, depth + 1)
            elif isinstance(value, Mapping) and not kind:
                section = type(model.model_fields[name].get_default(call_default_factory=True))
                about = (inspect.getdoc(section) or "").partition("\n")[0]
                yield from _with_comment(f"{name}:", about, depth)
                yield from self.lines(value, section, here, depth + 1)
            else:
                yield from _with_comment(f"{name}: {_yaml(value)}", about, depth)

    def _about_plugin(self, name: str) -> str:
        """What its module says of itself."""
        module = self.registry.manager.origin(name).target.partition(":")[0]
        about = inspect.getdoc(importlib.import_module(module)) or ""
        return about.partition("\n")[0].replace("``", "`")


def _with_comment(text: str, about: str, depth: int) -> Iterator[str]:
    """A line with a comment behind it, or above it where it is too long."""
    indent = "  " * depth
    about = about.rstrip(".")
    if len(line := f"{indent}{text}  # {about}".removesuffix("  # ")) <= _WIDTH:
        yield line
        return
    prefix = f"{indent}# "
    yield from textwrap.wrap(about, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)
    yield f"{indent}{text}"


def _yaml(value: Any) -> str:
    """A value in YAML's flow style, on one line."""
    # As the one item of a list: a text alone would be a document, and end with "...".
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
