"""``rlax plugins``: lists installed plug-ins, the parts that a config uses, and their options."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.errors import PluginError
from rlax_plugin.build import Registry, Use, registry_for
from rlax_plugin.config import Schedule, leaf_fields
from rlax_plugin.config.loading import load_section
from rlax_plugin.config.validation import yaml_text
from rlax_plugin.ports.manager import Installed, Manager, installed


def document(config: str | None, overrides: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns the installed plug-ins; for a config also what it lists, and the parts it uses."""
    if config is None:
        return {"installed": installed_rows()}
    section, _ = load_section(config, overrides)
    registry = registry_for(section)
    uses = {use.key: use for use in registry.uses(section)}
    return {
        "used": [_used_row(registry, use) for use in uses.values()],
        "loaded": [_plugin_row(registry.manager.origin(name)) for name in registry.manager.names],
        "installed": installed_rows(),
    }


def installed_rows() -> list[dict[str, Any]]:
    """Returns every installed plug-in: its package, and its parts or the reason it has none."""
    return [_plugin_row(plugin) for plugin in installed()]


def _plugin_row(plugin: Installed) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
    }
    try:
        offers = Registry(Manager([plugin.name])).offers
        row["offers"] = {kind: sorted(names) for kind, names in offers.items() if names}
    except PluginError as error:
        row["error"] = str(error)
    return row


def _used_row(registry: Registry, use: Use) -> dict[str, Any]:
    offer = registry.offer(use.kind, use.choice.part, use.key)
    options = registry.options(use.kind, use.choice, use.key)
    origin = registry.manager.origin(offer.plugin)
    return {
        "key": use.key,
        "kind": use.kind,
        "name": use.choice.name,
        "plugin": offer.plugin,
        "distribution": origin.distribution,
        "version": origin.version,
        "options": option_rows(options),
    }


def option_rows(options: BaseModel) -> dict[str, dict[str, Any]]:
    """Returns dotted name -> value and description of each option."""
    return {
        name: {
            "value": operator.attrgetter(name)(options),
            "default": None if field.is_required() else field.get_default(),
            "required": field.is_required(),
            "description": field.description or "",
        }
        for name, field in leaf_fields(type(options))
    }


def show(console: Console, config: str | None, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    """Prints a ``document`` as tables."""
    if config is not None:
        _print_used(console, config, rows["used"])
        _print_plugins(console, f"plug-ins that {config} lists", rows["loaded"])
        console.print()
    _print_plugins(console, "installed plug-ins", rows["installed"])


def _print_plugins(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("name", "offers", "distribution", "version"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "version"))
    for row in rows:
        if "error" in row:
            offers = Text(row["error"], "red")
        else:
            lines = [f"{kind}: {', '.join(names)}" for kind, names in row["offers"].items()]
            offers = Text("\n".join(lines) or "observes only")
        table.add_row(row["name"], offers, row["distribution"], row["version"])
    console.print(table)


def _print_used(console: Console, config: str, rows: list[dict[str, Any]]) -> None:
    table = Table(
        title=f"what {config} would use", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("key", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for row in rows:
        source = f"{row['distribution']} {row['version']}".strip()
        origin = f"{row['kind']} of {row['plugin']}" + (f" ({source})" if source else "")
        table.add_row(Text(row["key"], "bold"), Text(row["name"], "bold"), Text(origin))
        add_options(table, row["options"])
    console.print(table)


def add_options(table: Table, options: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds the ``option_rows`` of a part: name, value, and meaning with the default."""
    for name, option in options.items():
        value = option["value"]
        shown = Text(str(value) if isinstance(value, Schedule) else yaml_text(value))
        default = "" if option["required"] else f"default {yaml_text(option['default'])}"
        meaning = "; ".join(filter(None, (option["description"], default)))
        table.add_row(Text(f"  {name}"), shown, Text(meaning, "dim"))
