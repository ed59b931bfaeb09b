"""The output of ``rlax check``: the parts of a config, their processes and sizes, and warnings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlax_plugin.base.text.amounts import in_bytes
from rlax_plugin.tools.commands.check.examined import Examined, examine, examine_parts
from rlax_plugin.tools.commands.check.warnings import warnings
from rlax_plugin.tools.commands.check.words import deadlines, numbers, words

__all__ = ["Examined", "examine", "examine_parts", "explanation", "show"]

_TOGETHER = "trainer and engine together"


def explanation(config: Examined) -> dict[str, Any]:
    """Returns everything that ``show`` prints, as JSON.

    Returns:
      ``words``: heading -> title -> text; ``numbers``: name -> number; ``memory_bytes``: key of a
      part -> purpose -> bytes, and before them what two parts in one process need together;
      ``deadlines``: key -> given, needed and suggested value in seconds;
      ``warnings``: objects with ``key`` and ``text``.
    """
    checked = config.checked or {}
    needed = deadlines(config).values()
    found = [*warnings(config), *config.warnings]
    found += [one for result in checked.values() for one in result.warnings]
    found += [(need.key, need.text) for need in needed if not need.holds]
    memory = {key: dict(facts.memory) for key, facts in checked.items() if facts.memory}
    if any(result.one_process for result in checked.values()):
        memory = {_TOGETHER: {key: sum(sizes.values()) for key, sizes in memory.items()}, **memory}
    return {
        "words": words(config),
        "numbers": numbers(config),
        "memory_bytes": memory,
        "deadlines": {
            need.key: {
                "given_s": need.given_s,
                "needed_s": need.needed_s,
                "suggested_s": need.suggested_s,
            }
            for need in needed
        },
        "warnings": [{"key": key, "text": text} for key, text in found],
    }


def show(console: Console, document: Mapping[str, Any]) -> None:
    """Prints an ``explanation``."""
    for heading, texts in document["words"].items():
        _print_section(console, heading, texts)
    for key, memory in document["memory_bytes"].items():
        sizes = {what: in_bytes(size) for what, size in memory.items()}
        total = {"total": f"{in_bytes(sum(memory.values()))}, without activations inside layers"}
        heading = f"Memory of {key}, per process, over all its devices"
        _print_section(console, heading, sizes | total)
    for warning in document["warnings"]:
        console.print()
        text = Text.assemble(
            ("warning: ", "yellow"), (warning["key"], "bold"), f" {warning['text']}"
        )
        console.print(text, soft_wrap=True)


def _print_section(console: Console, heading: str, texts: Mapping[str, str]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in texts.items():
        table.add_row(Text(f"  {title}"), Text(text))
    console.print()
    console.print(Text(heading, "bold"))
    console.print(table)
