"""Writes a config's section as YAML, each key with the description of its config class."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel

from rlax_plugin.build import Registry

_WIDTH = 100  # columns


@dataclass(frozen=True, slots=True)
class CommentedYaml:
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
                options = {option: given for option, given in value.items() if option != "name"}
                offer = self.registry.offer(kind, value["name"], here)
                yield from self.lines(options, offer.extension.config_class, here, depth + 1)
            elif not kind and issubclass(section := _type(model, name), BaseModel):
                about = (inspect.getdoc(section) or "").partition("\n")[0]
                yield from _with_comment(f"{name}:", about, depth)
                yield from self.lines(value, section, here, depth + 1)
            else:
                yield from _with_comment(f"{name}: {in_yaml(value)}", about, depth)

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


def in_yaml(value: Any) -> str:
    """Returns a value in YAML's flow style, on one line."""
    # As the one item of a list: a text alone would be a document, and end with "...".
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=10_000)[1:-2]
