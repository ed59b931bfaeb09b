"""The reference: keys, parts, presets and metrics, as pages and for ``rlax explain``.

All of it is read from the code. docs/config.md, docs/metrics.md and the second part of
docs/objectives.md are ``PAGES``, so they stay in step with the code.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import re
import types
import typing
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlax_plugin.base.errors import ConfigError, UnknownKeyError
from rlax_plugin.build import Registry, built_in_plugins, registry_of
from rlax_plugin.config import (
    INT32_MAX,
    SLOTS,
    YEAR_S,
    Algorithm,
    Choice,
    NoOptions,
    RlaxSection,
    Scheduled,
    Section,
    leaf_fields,
)
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.data.prompts.config import DatasetConfig
from rlax_plugin.ports.kinds import ALL, AT_KEY, BY_NAME, NAME
from rlax_plugin.ports.manager import Manager
from rlax_plugin.ports.protocols import BuildContext
from rlax_plugin.testing.objectives import section_of
from rlax_plugin.training.objective.presets import Preset

# Where a part is chosen -> its kind.
PARTS = {key: kind.name for key, kind in AT_KEY.items()}

# Names end in their unit.
_UNITS = {"s": "seconds", "tokens": "tokens", "steps": "steps", "mib": "MiB"}
_SAID_ONCE = (INT32_MAX, YEAR_S)  # in the introduction
# Kinds whose parts docs/objectives.md explains.
_EXPLAINED = {"objective", *(kind.name for kind in ALL if kind.fills_slot)}
_SHARED = "Options of every dataset"  # described once on the page
_OR_SCHEDULE = "; or a schedule"
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of the config, or an option of a part.

    Attributes:
      key: the dotted key.
      type: the type in words, with unit and bounds.
      default: default as YAML; empty if the key must be given.
      meaning: its description.
      kind: kind of the part that the key chooses; empty if it chooses none.
    """

    key: str
    type: str
    default: str
    meaning: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one section or part.

    Attributes:
      title: the section's dotted key, or kind and name of a part.
      text: description of the section or part; empty if the part's config class has none.
      keys: the keys, in the order of the class.
      plugin: plug-in that offers the part.
    """

    title: str
    text: str
    keys: tuple[ConfigKey, ...]
    plugin: str = ""


def sections(model: type[BaseModel] = RlaxSection, key: str = "rlax") -> Iterator[Keys]:
    """Yields the keys of a section, then those of the sections nested in it."""
    own: list[ConfigKey] = []
    inside: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        place, section = f"{key}.{name}", _section_in(field.annotation)
        if section is None:
            own.append(_key(place, name, field))
        elif section is field.annotation:
            inside.append((section, place))
        else:  # a mapping of names to sections, or a list of them
            own.append(_key(place, name, field))
            named = typing.get_origin(field.annotation) is dict
            inside.append((section, f"{place}.{NAME}" if named else place))
    yield Keys(key, _prose(model), tuple(own))
    for section, place in inside:
        yield from sections(section, place)


def parts(registry: Registry | None = None) -> Iterator[tuple[str, Keys]]:
    """Yields (kind, options) of every part that plug-ins offer.

    Args:
      registry: the plug-ins; None: the built-in ones and those for tests.
    """
    for kind, offers in (registry or built_in()).offers.items():
        for name, offer in offers.items():
            options = offer.extension.config_class
            fields = leaf_fields(options)
            keys = tuple(_key(name, name.rpartition(".")[2], field) for name, field in fields)
            text = "" if options is NoOptions else _prose(options)
            yield kind, Keys(name, text, keys, offer.plugin)


def of_a_part(error: UnknownKeyError) -> ConfigError:
    """Returns the error with the key's place added, if exactly one built-in part has the option.

    A name similar to an option counts too, unless it is more similar to a neighbouring key.
    """
    word = error.key.rpartition(".")[2]
    places = defaultdict(set)
    for kind, part in parts():
        for key in part.keys:
            option = key.key.partition(".")[0]
            place = f"rlax.{BY_NAME[kind].places[0]}.{option}"
            places[option].add(f"{place} is an option of {spoken(kind)} {part.title!r}")
    near = difflib.get_close_matches(word, {*error.known, *places}, n=1, cutoff=0.75)
    if not near or near[0] in error.known or len(places[near[0]]) > 1:
        return error
    reason = f"unknown key; {places[near[0]].pop()}"
    return ConfigError(error.key, error.value, reason, error.others)


@functools.cache
def built_in() -> Registry:
    """Returns what the built-in plug-ins and those for tests offer."""
    return Registry(Manager([*built_in_plugins().names, "rlax_plugin.testing"]))


def _key(key: str, name: str, field: FieldInfo) -> ConfigKey:
    kind = PARTS.get(key, "")
    unit = "" if "_per_" in name else _UNITS.get(name.split("_")[-1], "")
    words = _words(field.annotation, field.metadata, unit)
    if kind:
        words = re.sub("part|text", f"part: {spoken(kind)}", words)
    return ConfigKey(key, words, _default(field), field.description or "", kind)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    return f"{{name: {default.name}}}" if isinstance(default, Choice) else yaml_text(default)


def spoken(kind: str) -> str:
    """Returns the name of a kind in words."""
    return kind.replace("_", " ")


def _prose(documented: Any) -> str:
    return inspect.cleandoc(documented.__doc__ or "").replace("``", "`")


def _section_in(annotation: Any) -> type[Section] | None:
    """Returns a field's config class, or that of a mapping's values or a list's items.

    It may be the class of a field that may be null.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    nested = dict, tuple, typing.Union, types.UnionType
    for candidate in (annotation, *(inner if origin in nested else ())):
        if inspect.isclass(candidate) and issubclass(candidate, Section):
            return candidate
    return None


def _words(annotation: Any, metadata: Sequence[Any], unit: str) -> str:
    """Describes a type in words, such as ``whole number of tokens, at least 1``."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _words(inner[0], [*metadata, *inner[1:]], unit)
    if origin is Scheduled:
        return f"{_words(inner[0], metadata, unit)}{_OR_SCHEDULE}"
    if origin in (typing.Union, types.UnionType):
        return "; or ".join(_words(each, metadata, unit) for each in inner)
    if origin is tuple:
        not_empty = " of at least one" if any(hasattr(m, "min_length") for m in metadata) else ""
        return f"list{not_empty}, each: {_words(inner[0], (), unit)}"
    if origin in (dict, Mapping):
        return "mapping of names"
    if origin is typing.Literal:
        return " or ".join(yaml_text(value) for value in inner)
    nouns = {int: "whole number", float: "number", bool: "true or false", str: "text"}
    if annotation is type(None):
        return "null"
    if inspect.isclass(annotation) and issubclass(annotation, Choice):
        return "part"
    if inspect.isclass(annotation) and issubclass(annotation, Section):
        return "section"
    noun = nouns.get(annotation) or str(getattr(annotation, "__name__", annotation))
    if unit and annotation in (int, float):
        noun += f" of {unit}"
    return ", ".join([noun, *_bounds(metadata)])


def _bounds(metadata: Sequence[Any]) -> Iterator[str]:
    for item in metadata:
        if isinstance(item, FieldInfo):  # of an alias such as ``PositiveInt``
            yield from _bounds(item.metadata)
        for attribute, words in _BOUNDS.items():
            bound = getattr(item, attribute, None)
            if bound is not None and bound not in _SAID_ONCE:
                yield f"{words} {bound:g}"


_INTRODUCTION = """\
# The config

<!-- Written by `rlax explain --markdown config`; a test compares. -->

This page lists every key of the section `rlax:` of a MaxText config, and then the options of \
every built-in part. On a terminal, `rlax explain rlax.rollouts` explains a section, `rlax explain \
rlax.launcher.workers` a key and `rlax explain wandb` a part; `rlax check CONFIG` finds the errors \
in a config, and `rlax plugins CONFIG` lists the parts it uses. Every key can also be set on the \
command line, for instance `rlax.rollouts.group_size=4`. The [glossary](glossary.md) defines the \
terms.

A part is a component that the config chooses by its name, such as a reward. It is written as a \
mapping with its name and its options: `launcher: {name: local, workers: 2}`. If the part is the \
default of its key, the name may be left out: `launcher: {workers: 2}`. Keys without a default \
must be set; null means that no value is set. Unless a key says otherwise, whole numbers are at \
most 2147483647, seconds at most a year, and other numbers finite. All keys outside `rlax:` belong \
to MaxText."""


def config_page() -> str:
    """Returns the text of docs/config.md."""
    blocks = [_INTRODUCTION]
    for section in sections():
        blocks += [f"## {section.title}", section.text]
        if section.keys:
            blocks.append(_markdown_keys(section.keys, section.title))
    blocks += [
        "# Parts",
        "This section has all built-in parts and their options. It leaves out those of plug-in "
        "`rlax_plugin.testing`, with which a run needs no model and takes seconds; `rlax explain "
        "scripted` explains one of them.",
    ]
    shared = tuple(_key(name, name, field) for name, field in leaf_fields(DatasetConfig))
    for kind, group in itertools.groupby(parts(registry_of(())), key=lambda offered: offered[0]):
        blocks.append(f"## {spoken(kind).capitalize()}")
        if kind == "prompt_source":
            blocks += [
                f"### {_SHARED}",
                _prose(DatasetConfig).partition("\n\n")[2],
                _markdown_keys(shared, ""),
            ]
        bare = []
        for _, part in group:
            if part.keys or (part.text and kind not in _EXPLAINED):
                blocks += [f"### {part.title}", _about(kind, part)]
                own = tuple(key for key in part.keys if key not in shared)
                if kind == "prompt_source" and own != part.keys:
                    anchor = _SHARED.lower().replace(" ", "-")
                    blocks[-1] += f" It has the [options of every dataset](#{anchor}) as well."
                blocks += [_markdown_keys(own, "")] if own else []
            else:
                bare.append(f"{_explained(kind, part.title)} (`{part.plugin}`)")
        if bare:
            heading = "Presets" if kind == "objective" else "Parts without options"
            blocks.append(f"{heading}: {', '.join(bare)}.")
    return "\n\n".join(blocks) + "\n"


def _about(kind: str, part: Keys) -> str:
    """Describes a part, and names the plug-in that offers it."""
    offered = f"This part is offered by plug-in `{part.plugin}`"
    offered += "." if part.keys else " and has no options."
    if kind in _EXPLAINED:
        return f"{offered} Its formula: {_explained(kind, part.title)}."
    return f"{part.text}\n\n{offered}"


def _explained(kind: str, name: str) -> str:
    """Returns a link to a part of the objective; a preset of the same name precedes it there."""
    presets = built_in().offers["objective"]
    anchor = f"{name}-1" if name in presets and kind != "objective" else name
    return f"[{name}](objectives.md#{anchor.replace('/', '')})"


def _markdown_keys(keys: Sequence[ConfigKey], section: str) -> str:
    rows = [["key" if section else "option", "type", "default", "meaning"]]
    for key in keys:
        words = key.type
        if key.kind and registry_of(()).offers[key.kind]:
            kind = spoken(key.kind)
            words = words.replace(kind, f"[{kind}](#{kind.replace(' ', '-')})")
        words = words.replace(_OR_SCHEDULE, "; or a [schedule](objectives.md#schedules)")
        default = f"`{key.default}`" if key.default else ""
        meaning = key.meaning.replace("<", r"\<").replace("|", r"\|")
        rows.append([f"`{key.key.removeprefix(f'{section}.')}`", words, default, meaning])
    return _table(rows)


def presets_of(registry: Registry) -> dict[str, Preset]:
    """Returns every preset that the loaded plug-ins offer, in their order."""
    return {name: _built(registry, "objective", name) for name in registry.offers["objective"]}


def part_text(registry: Registry, kind: str, name: str) -> str:
    """Returns a part's description: the docstring of its options or, if it has none, its own."""
    documented = registry.offer(kind, name, kind).extension.config_class
    if documented is NoOptions:
        documented = _built(registry, kind, name)
    return _prose(documented)


def _built(registry: Registry, kind: str, name: str) -> Any:
    context = BuildContext.outside_run(section_of({}, registry.manager.names))
    return registry.part(kind, Choice(name=name), kind, context)


def objectives_page() -> str:
    """Returns the generated part of docs/objectives.md."""
    registry = registry_of(())
    presets = presets_of(registry)
    blocks = [
        "## Presets",
        "The symbols are those of the [notation](#notation). In the table, agg and is stand for "
        "the slots `aggregation` and `importance_weight`, and the last column is the value of "
        "`old_policy`. Each preset has its formula, its config, and notes on its details and on "
        "other libraries.",
        _preset_table(presets),
        *(block for name, preset in presets.items() for block in _preset_blocks(name, preset)),
        "## Parts",
        "A config chooses a part by its name and can set its options. The text below each name is "
        "the docstring of the part; it begins with what the part computes.",
    ]
    for kind, group in itertools.groupby(parts(registry), key=lambda offered: offered[0]):
        if BY_NAME[kind].fills_slot:
            blocks.append(f"### {spoken(kind).capitalize()}s")
            for _, part in group:
                text = part_text(registry, kind, part.title)
                blocks += [f"#### {part.title}", f"```text\n{text}\n```"]
                blocks += [_markdown_keys(part.keys, "")] if part.keys else []
    return "\n\n".join(blocks) + "\n"


def _preset_table(presets: Mapping[str, Preset]) -> str:
    rows = [["preset", "agg", "is", "advantage", "grad_1", "grad_2", "pi_old"]]
    for name, preset in presets.items():
        slots = [f"`{_short(getattr(preset, slot))}`" for slot in SLOTS]
        rows.append([f"[{name}](#{name.replace('/', '')})", *slots, preset.old_policy])
    return _table(rows)


def _short(choice: Choice | None) -> str:
    """Formats a choice on one line, as a call."""
    if choice is None:
        return ""
    options = ", ".join(f"{name}={yaml_text(value)}" for name, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name


def _preset_blocks(name: str, preset: Preset) -> Iterator[str]:
    slots = {slot: getattr(preset, slot).model_dump(mode="json") for slot in SLOTS}
    others = preset.model_dump(
        mode="json", include=set(Algorithm.model_fields) - set(SLOTS), exclude_defaults=True
    )
    config = yaml.safe_dump(slots | others, sort_keys=False, default_flow_style=None, width=90)
    yield f"### {name}"
    yield f"{preset.title}, <{preset.paper}>"
    yield f"```text\n{preset.formula.rstrip()}\n```"
    yield f"```yaml\n{config}```"
    for heading, lines in preset_notes(preset):
        yield f"{heading}:"
        yield "\n".join(f"- **{name}**: {text}" if name else f"- {text}" for name, text in lines)


def preset_notes(preset: Preset) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields (heading, its lines), each line with the name that it is about, if there is one."""
    notes = {
        "Conventions": [("", line) for line in preset.conventions],
        "In other libraries": [*preset.peers.items()],
        f"Defaults of version {preset.version}, <{preset.source}>": [*preset.covers.items()],
        "What the preset cannot say": [("", line) for line in preset.lacks],
    }
    yield from ((heading, lines) for heading, lines in notes.items() if lines)


PAGES = {"config": config_page, "objectives": objectives_page}
"""Name of a generated page -> its text."""


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first row is its heading."""
    rows = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
