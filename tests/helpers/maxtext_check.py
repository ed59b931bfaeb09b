"""Compares the upstream symbols in use between the tested version and another; imports neither.

``make maxtext-check VERSION=0.2.6`` runs it. A folder or a wheel may be given instead of a version.
``Sources`` finds Python sources by dotted name in a folder or a wheel.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import importlib.metadata
import importlib.util
import inspect
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import Override
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.text.terminal import console

_PACKAGE = "maxtext"  # its name on PyPI
WHEELS = Path(".cache/maxtext")
"""Folder of the wheels that were fetched, below the working directory."""

Status = Literal["same", "changed", "missing"]
_STYLES = {"same": "green", "changed": "yellow", "missing": "red"}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_FETCH_S = 600  # for a few megabytes, on a slow network
_MOST_NEAREST = 3  # places where a symbol may have gone


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


def kept_wheel(distribution: str, version: str) -> Path | None:
    """Returns the wheel of a version if it was fetched before."""
    name = distribution.replace("-", "_")
    return next(iter(sorted(WHEELS.glob(f"{name}-{version}-*.whl"))), None)


def fetch(distribution: str, version: str) -> Path:
    """Returns the wheel of a version, without its dependencies and without installing anything.

    Raises:
      RlaxError: there is no such version, or the registry cannot be reached.
    """
    if (wheel := kept_wheel(distribution, version)) is not None:
        return wheel
    requirement = f"{distribution}=={version}"
    command = python_command("-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(WHEELS), requirement]
    try:
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, check=False, timeout=_FETCH_S
        )
    except subprocess.TimeoutExpired as error:
        raise RlaxError(f"cannot fetch {requirement} within {_FETCH_S} s") from error
    wheel = kept_wheel(distribution, version)
    if done.returncode or wheel is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RlaxError(f"cannot fetch {requirement}: {said[-1] if said else 'no wheel of it'}")
    return wheel


def installed(distribution: str, version: str) -> Sources:
    """Returns the installed sources if they have the tested version; else those of its wheel."""
    spec = importlib.util.find_spec(distribution)
    if spec is None or not spec.submodule_search_locations:
        return Sources(fetch(distribution, version))
    if importlib.metadata.version(distribution) != version:
        return Sources(fetch(distribution, version))
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
        prog="make maxtext-check",
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
            tested = Sources(fetch(_PACKAGE, version))
            against = installed(_PACKAGE, version)
        else:
            path = Path(other) if Path(other).exists() else fetch(_PACKAGE, other)
            tested, against = installed(_PACKAGE, version), Sources(path)
        found = compare(table, tested, against)
    except RlaxError as error:
        console(sys.stderr).print(Text.assemble(("error: ", "bold red"), str(error)))
        return 2
    show(found, out)
    named = other if Path(other).exists() else f"{_PACKAGE} {other}"
    out.print(_summary(found, f"{_PACKAGE} {version}", named))
    return int(any(one.status != "same" for one in found))


def sha256(text: str) -> str:
    """Returns the sha256 of a source text, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def unified(old: str, new: str, old_name: str, new_name: str) -> list[str]:
    """Returns the lines of a unified diff without line ends; none if both texts are the same."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name)
    return [line.rstrip("\n") for line in lines]


@dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a symbol, found by following imports.

    Attributes:
      symbol: dotted name of the module that defines it, and its name there.
      text: for a function or class the result of ``inspect.getsource``; else the statement, or the
        whole module.
      node: the text, parsed.
    """

    symbol: str
    text: str
    node: ast.AST

    @property
    def names(self) -> frozenset[str]:
        """All names inside: variables, fields, keys, functions, imports."""
        return frozenset(_names(self.node))


class Sources:
    """The sources of a package.

    Args:
      root: a wheel, or a folder such as ``site-packages``.

    Raises:
      RlaxError: it is neither; its methods also raise it for a module that is not Python.
    """

    def __init__(self, root: Path):
        try:
            self._root = zipfile.Path(root) if root.is_file() else root
        except zipfile.BadZipFile as error:
            raise RlaxError(f"{root} is not a wheel or is damaged; remove it") from error
        self._parsed: dict[str, tuple[str, ast.Module]] = {}

    def find(self, symbol: str) -> Definition | None:
        """Returns the definition of a dotted name: a module, a name in one, or a name in a class.

        A name that a module imports from its own package is followed to its definition.
        """
        parts = symbol.split(".")
        for count in range(len(parts), 0, -1):
            if (module := ".".join(parts[:count])) and self._path(module) is not None:
                return self._inside(module, parts[count:])
        return None

    def nearest(self, symbol: str) -> list[Definition]:
        """Returns likely new places of a missing symbol: under another name there, or elsewhere."""
        owner, _, name = symbol.rpartition(".")
        found = []
        if (definition := self.find(owner)) is not None:
            body = getattr(definition.node, "body", [])
            known = {n for statement in _flat(body) for n in _bound(statement)}
            for near in difflib.get_close_matches(name, sorted(known), _MOST_NEAREST):
                found.append(self.find(f"{owner}.{near}"))
        package = symbol.partition(".")[0]
        elsewhere = [f"{module}.{name}" for module in self._modules(package, name)]
        for other in difflib.get_close_matches(symbol, elsewhere, _MOST_NEAREST, cutoff=0):
            found.append(self.find(other))
        unique = {d.symbol: d for d in found if d is not None and d.symbol != symbol}
        return list(unique.values())[:_MOST_NEAREST]

    def _path(self, module: str) -> Path | zipfile.Path | None:
        place = module.replace(".", "/")
        paths = (self._root / f"{place}.py", self._root / f"{place}/__init__.py")
        return next((path for path in paths if path.is_file()), None)

    def _module(self, module: str) -> tuple[str, ast.Module]:
        if module not in self._parsed:
            path = self._path(module)
            assert path is not None
            text = path.read_text(encoding="utf-8")
            try:
                self._parsed[module] = text, ast.parse(text)
            except SyntaxError as error:
                raise RlaxError(f"{path} cannot be read: {error}") from error
        return self._parsed[module]

    def _modules(self, package: str, name: str) -> Iterator[str]:
        """Yields modules that define ``name`` at top level."""

        def below(folder: Path | zipfile.Path, prefix: str) -> Iterator[str]:
            for path in folder.iterdir():
                if path.is_dir():
                    yield from below(path, f"{prefix}.{path.name}")
                elif path.name.endswith(".py") and name in path.read_text(encoding="utf-8"):
                    stem = path.name.removesuffix(".py")
                    yield prefix if stem == "__init__" else f"{prefix}.{stem}"

        if not (folder := self._root / package).is_dir():
            return
        for module in below(folder, package):
            for node in _flat(self._module(module)[1].body):
                if not isinstance(node, ast.Import | ast.ImportFrom) and name in _bound(node):
                    yield module

    def _inside(self, module: str, names: Sequence[str]) -> Definition | None:
        text, node = self._module(module)[0], self._module(module)[1]
        current: ast.AST = node
        for place, name in enumerate(names):
            body = getattr(current, "body", [])
            if not isinstance(current, ast.Module | ast.ClassDef):
                return None
            found = next((n for n in _flat(body) if name in _bound(n)), None)
            if found is None:
                return None
            if isinstance(found, ast.ImportFrom):
                target = ".".join([self._origin(module, found, name), *names[place + 1 :]])
                if target.partition(".")[0] == module.partition(".")[0]:
                    return self.find(target)
            current = found
        if current is not node:
            text = _text(text.splitlines(keepends=True), current)
        return Definition(".".join([module, *names]), text, current)

    def _origin(self, module: str, node: ast.ImportFrom, name: str) -> str:
        original = next(a.name for a in node.names if name in (a.asname, a.name))
        if not node.level:
            return f"{node.module}.{original}"
        path = self._path(module)
        parts = module.split(".")
        above = node.level - (path is not None and path.name == "__init__.py")
        return ".".join([*parts[: len(parts) - above], *filter(None, [node.module]), original])


def _text(lines: list[str], node: ast.AST) -> str:
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return "".join(lines[first - 1 : last])
    first = min([first, *(d.lineno for d in node.decorator_list)])
    return "".join(inspect.getblock(lines[first - 1 :]))  # as ``inspect.getsource``


def _flat(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a body, with those inside its conditions and try blocks."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for inner in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _flat(handler.body)


def _bound(node: ast.stmt) -> set[str]:
    """Returns the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        inner = [n for target in targets for n in ast.walk(target)]
        return {n.id for n in inner if isinstance(n, ast.Name)}
    return set()


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                yield name
            case ast.Subscript(slice=ast.Constant(value=str(name))):
                yield name
            case ast.Dict(keys=keys):
                yield from (k.value for k in keys if isinstance(k, ast.Constant))


if __name__ == "__main__":
    sys.exit(main())
