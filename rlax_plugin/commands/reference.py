"""The reference of the config: every key of ``rlax:``, and the options of every built-in part.

All of it is read from the config classes. ``rlax config`` prints it, and docs/config.md contains
the output of ``markdown``, so both stay in step with the code.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.build import Registry, built_in_plugins
from rlax_plugin.config import (
    INT32_MAX,
    YEAR_S,
    Choice,
    NoOptions,
    RlaxSection,
    Scheduled,
    Section,
    leaf_fields,
)
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.errors import ConfigError, UnknownKeyError, alternatives
from rlax_plugin.ports.kinds import ALL, AT_KEY, BY_NAME, NAME
from rlax_plugin.ports.manager import Manager
from rlax_plugin.text.markdown import markdown_table

# Where a part is chosen -> its kind.
PARTS = {key: kind.name for key, kind in AT_KEY.items()}

# Names end in their unit.
_UNITS = {"s": "seconds", "tokens": "tokens", "steps": "steps", "mib": "MiB"}
_SAID_ONCE = (INT32_MAX, YEAR_S)  # in the introduction
# Kinds whose parts docs/objectives.md explains.
_EXPLAINED = {"objective", *(kind.name for kind in ALL if kind.fills_slot)}
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


def parts(kind: str = "") -> Iterator[tuple[str, Keys]]:
    """Yields (kind, options) of every built-in part of ``kind``; by default of all kinds."""
    for offered, offers in _built_in().offers.items():
        for name, offer in offers.items() if kind in ("", offered) else ():
            options = offer.extension.config_class
            fields = leaf_fields(options)
            keys = tuple(_key(name, name.rpartition(".")[2], field) for name, field in fields)
            text = "" if options is NoOptions else _prose(options)
            yield offered, Keys(name, text, keys, offer.plugin)


def find(wanted: str) -> list[Keys]:
    """Returns the description of a section, a key, a part, or an option.

    Args:
      wanted: dotted key, with or without the leading ``rlax.`` and the index of a list, or the last
        word of one; or the name of a built-in part.

    Raises:
      ConfigError: there is no such key or part.
    """
    stem = re.sub(r"\.\d+(?=\.|$)", "", wanted).removeprefix("rlax.")
    key = stem if stem == "rlax" else f"rlax.{stem}"
    found = []
    for section in sections():
        keys = [k for k in section.keys if _is(k, stem) or k.key.startswith(f"{key}.")]
        if keys:
            found.append(replace(section, keys=tuple(keys)))
    kinds = {k.kind: "" for section in found for k in section.keys if k.kind and _is(k, stem)}
    for place, kind in PARTS.items():
        if key.startswith(f"{place}."):
            kinds[kind] = key.removeprefix(f"{place}.")
    for kind, option in kinds.items():
        for _, part in parts(kind):
            keys = [k for k in part.keys if f"{k.key}.".startswith(f"{option}.") or not option]
            if keys or not option:
                found.append(_titled(kind, replace(part, keys=tuple(keys))))
    if not found:  # the name of an option, or of the options that begin with it
        for kind, part in parts():
            if keys := [k for k in part.keys if f"{k.key}.".startswith(f"{stem}.")]:
                found.append(_titled(kind, replace(part, keys=tuple(keys))))
    shown = {block.title for block in found}
    named = (_titled(kind, part) for kind, part in parts() if part.title == wanted)
    found += [part for part in named if part.title not in shown]
    if not found:
        known = [name for s in sections() for name in (s.title, *(k.key for k in s.keys))]
        (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        place = nearest.rpartition(".")[0]
        beside = [k for k in known if k.rpartition(".")[0] == place]
        offered = {part.title for _, part in parts()}
        if near := difflib.get_close_matches(wanted, offered, n=1, cutoff=0.7):
            reason = f"no such key, and no such part; did you mean {near[0]!r}?"
            raise ConfigError(wanted, None, reason)
        raise ConfigError(wanted, None, f"no such key; {alternatives(key, beside)}")
    return found


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
            places[option].add(f"{place} is an option of {_spoken(kind)} {part.title!r}")
    near = difflib.get_close_matches(word, {*error.known, *places}, n=1, cutoff=0.75)
    if not near or near[0] in error.known or len(places[near[0]]) > 1:
        return error
    reason = f"unknown key; {places[near[0]].pop()}"
    return ConfigError(error.key, error.value, reason, error.others)


def _titled(kind: str, part: Keys) -> Keys:
    return replace(part, title=f"{_spoken(kind)} {part.title}")


def _is(known: ConfigKey, stem: str) -> bool:
    return f".{known.key}".endswith(f".{stem}")


@functools.cache
def _built_in() -> Registry:
    return Registry(Manager([*built_in_plugins().names, "rlax_plugin.testing"]))


def _key(key: str, name: str, field: FieldInfo) -> ConfigKey:
    kind = PARTS.get(key, "")
    unit = "" if "_per_" in name else _UNITS.get(name.split("_")[-1], "")
    words = _words(field.annotation, field.metadata, unit)
    if kind:
        words = re.sub("part|text", f"part: {_spoken(kind)}", words)
    return ConfigKey(key, words, _default(field), field.description or "", kind)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    default = field.get_default(call_default_factory=True)
    return f"{{name: {default.name}}}" if isinstance(default, Choice) else yaml_text(default)


def _spoken(kind: str) -> str:
    return kind.replace("_", " ")


def _prose(model: type[BaseModel]) -> str:
    return inspect.cleandoc(model.__doc__ or "").replace("``", "`")


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
    if origin is dict:
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


def show(console: Console, found: Sequence[Keys]) -> None:
    """Prints keys as tables, one per section or part."""
    for block in found:
        none = "" if block.keys else "  no options"
        console.print(Text.assemble((block.title, "bold"), none))
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key in block.keys:
            name = key.key.removeprefix(f"{block.title}.")
            default = f"default {key.default}" if key.default else "must be given"
            facts = Text(f"{key.type}; {default}")
            table.add_row(Text(f"  {name}"), facts.append(f"\n{key.meaning}", "dim"))
        if block.keys:
            console.print(table)


_INTRODUCTION = """\
# The config

<!-- Written by `rlax config --markdown`; a test compares. -->

This page lists every key of the section `rlax:` of a MaxText config, and then the options of \
every built-in part. On a terminal, `rlax config rlax.rollouts` explains a section, `rlax config \
rlax.launcher.workers` a key and `rlax config wandb` a part; `rlax check CONFIG` finds the errors \
in a config, and `rlax plugins CONFIG` lists the parts it uses. Every key can also be set on the \
command line, for instance `rlax.rollouts.group_size=4`. The [glossary](glossary.md) defines the \
terms.

A part is a component that the config chooses by its name, such as a reward. It is written as a \
mapping with its name and its options: `launcher: {name: local, workers: 2}`. If the part is the \
default of its key, the name may be left out: `launcher: {workers: 2}`. Keys without a default \
must be set; null means that no value is set. Unless a key says otherwise, whole numbers are at \
most 2147483647, seconds at most a year, and other numbers finite. All keys outside `rlax:` belong \
to MaxText."""


def markdown() -> str:
    """Returns the text of docs/config.md."""
    blocks = [_INTRODUCTION]
    for section in sections():
        blocks += [f"## {section.title}", section.text]
        if section.keys:
            blocks.append(_markdown_keys(section.keys, section.title))
    blocks += [
        "# Parts",
        "This section has all built-in parts and their options. The parts of plug-in "
        "`rlax_plugin.testing` are for tests: with them a run needs no model and takes seconds.",
    ]
    for kind, group in itertools.groupby(parts(), key=lambda offered: offered[0]):
        blocks.append(f"## {_spoken(kind).capitalize()}")
        bare = []
        for _, part in group:
            if part.keys or (part.text and kind not in _EXPLAINED):
                blocks += [f"### {part.title}", _about(kind, part)]
                blocks += [_markdown_keys(part.keys, "")] if part.keys else []
            else:
                bare.append(f"{_explained(kind, part.title)} (`{part.plugin}`)")
        if bare:
            what = "Presets" if kind == "objective" else "Parts without options"
            blocks.append(f"{what}: {', '.join(bare)}.")
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
    presets = _built_in().offers["objective"]
    anchor = f"{name}-1" if name in presets and kind != "objective" else name
    return f"[{name}](objectives.md#{anchor})"


def _markdown_keys(keys: Sequence[ConfigKey], section: str) -> str:
    rows = [["key" if section else "option", "type", "default", "meaning"]]
    for key in keys:
        words = key.type
        if key.kind and _built_in().offers[key.kind]:
            what = _spoken(key.kind)
            words = words.replace(what, f"[{what}](#{what.replace(' ', '-')})")
        words = words.replace(_OR_SCHEDULE, "; or a [schedule](objectives.md#schedules)")
        default = f"`{key.default}`" if key.default else ""
        meaning = key.meaning.replace("<", r"\<").replace("|", r"\|")
        rows.append([f"`{key.key.removeprefix(f'{section}.')}`", words, default, meaning])
    return markdown_table(rows)
