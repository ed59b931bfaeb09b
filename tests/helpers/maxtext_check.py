"""Compares the upstream symbols in use between the tested version and another; imports neither.

``make maxtext-check VERSION=0.2.6``, or ``python -m maxtext_overrides.upstream.compare 0.2.6``. A
folder or a wheel may be given instead of a version.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from maxtext_overrides.upstream import wheels
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import Override
from maxtext_overrides.upstream.sources import Definition, Sources, sha256, unified
from rlax_plugin.errors import RlaxError
from rlax_plugin.text.terminal import console

_PACKAGE = "maxtext"  # its name on PyPI

Status = Literal["same", "changed", "missing"]
_STYLES = {"same": "green", "changed": "yellow", "missing": "red"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One symbol in another version.

    Attributes:
      override: declaration of the symbol.
      module: module of this project that uses it.
      status: ``missing`` also if the symbol exists and a name in it does not.
      notes: missing names, with the places where they may be now, one per line.
      diff: lines of a unified diff.
    """

    override: Override
    module: str
    status: Status
    notes: tuple[str, ...] = ()
    diff: tuple[str, ...] = ()


def compare(
    table: Mapping[str, Iterable[Override]], tested: Sources, other: Sources
) -> list[Comparison]:
    """Looks up every symbol in both versions.

    Args:
      table: module of this project -> the symbols it relies on.
      tested: the tested sources; they hold every symbol of the table.
      other: the sources to compare with.
    """
    return [
        _compared(override, module, tested, other)
        for module, overrides in table.items()
        for override in overrides
    ]


def _compared(override: Override, module: str, tested: Sources, other: Sources) -> Comparison:
    before, after = tested.find(override.symbol), other.find(override.symbol)
    if before is None:
        raise RlaxError(f"{override.symbol} is not in the tested version: correct the table")
    if after is None:
        notes = [_nearest(near, before) for near in other.nearest(override.symbol)]
        return Comparison(override, module, "missing", tuple(notes or ["no similar name found"]))
    gone = [name for name in override.names if name not in after.names]
    notes = [_renamed(name, after) for name in gone]
    if before.symbol != after.symbol:
        notes.append(f"now defined as {after.symbol}")
    differs = override.sha256 and override.sha256 != sha256(after.text)
    diff: list[str] = []
    if differs:
        diff = unified(before.text, after.text, f"tested/{before.symbol}", f"other/{after.symbol}")
        notes += [] if diff else ["the tested source has another digest than the table"]
    status: Status = "missing" if gone else "changed" if differs else "same"
    return Comparison(override, module, status, tuple(notes), tuple(diff))


def _nearest(near: Definition, before: Definition) -> str:
    same = (near.text == before.text and "with the same source") or "with another source"
    return f"nearest: {near.symbol}, {same}"


def _renamed(name: str, after: Definition) -> str:
    near = difflib.get_close_matches(name, sorted(after.names), 1)
    return f"no {name} in it" + (f"; nearest: {near[0]}" if near else "")


def show(found: Iterable[Comparison], out: Console) -> None:
    """Prints one line per symbol, followed by the changes and the parts that are relied on."""
    for one in found:
        override = one.override
        line = Text(one.status.ljust(8), _STYLES[one.status])
        line.append(f"{override.symbol}", "bold")
        line.append(f"  ({override.use} by {one.module})", "dim")
        out.print(line, soft_wrap=True)
        if one.status == "same" and not one.notes:
            continue
        relies_on = override.relies_on or ", ".join(override.names)
        reasons = [f"why: {override.why}", *([f"relied on: {relies_on}"] if relies_on else [])]
        for note in [*one.notes, *reasons, f"delete when: {override.delete_when}"]:
            out.print(Text(f"        {note}"), soft_wrap=True)
        for diff_line in one.diff:
            out.print(Text(diff_line, _DIFF_STYLES.get(diff_line[:1], "")), soft_wrap=True)


def _summary(found: Iterable[Comparison], tested: str, other: str) -> str:
    statuses = [one.status for one in found]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in _STYLES)
    return f"{len(statuses)} symbols of {tested} in {other}: {counts}"


def installed(distribution: str, version: str) -> Sources:
    """Returns the installed sources if they have the tested version; else those of its wheel."""
    spec = importlib.util.find_spec(distribution)
    if spec is None or not spec.submodule_search_locations:
        return Sources(wheels.fetch(distribution, version))
    if importlib.metadata.version(distribution) != version:
        return Sources(wheels.fetch(distribution, version))
    return Sources(Path(spec.submodule_search_locations[0]).parent)


def _symbols() -> Iterator[tuple[str, list[Override]]]:
    for module, overrides in BY_MODULE.items():
        if chosen := [o for o in overrides if o.distribution == _PACKAGE]:
            yield module, chosen


def main(arguments: list[str] | None = None) -> int:
    """Compares the symbols in use with those of another version.

    Args:
      arguments: arguments of the command line.

    Returns:
      0 if nothing has changed, 1 if something has, 2 if there is nothing to compare.
    """
    parser = argparse.ArgumentParser(
        prog="python -m maxtext_overrides.upstream.compare",
        description="Compares the upstream "
        "symbols in use with another MaxText version: each is same, changed or missing.",
    )
    parser.add_argument("other", help="version to compare with, or a wheel, or a folder of sources")
    other = parser.parse_args(arguments).other
    table = dict(_symbols())
    version = next(o.versions[-1] for overrides in table.values() for o in overrides)
    out = console(sys.stdout)
    try:
        if other == version:  # what was changed in place, in the installed package
            tested = Sources(wheels.fetch(_PACKAGE, version))
            against = installed(_PACKAGE, version)
        else:
            path = Path(other) if Path(other).exists() else wheels.fetch(_PACKAGE, other)
            tested, against = installed(_PACKAGE, version), Sources(path)
        found = compare(table, tested, against)
    except RlaxError as error:
        console(sys.stderr).print(Text.assemble(("error: ", "bold red"), str(error)))
        return 2
    show(found, out)
    named = other if Path(other).exists() else f"{_PACKAGE} {other}"
    out.print(_summary(found, f"{_PACKAGE} {version}", named))
    return int(any(one.status != "same" for one in found))


if __name__ == "__main__":
    sys.exit(main())
