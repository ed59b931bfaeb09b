"""Finds Python sources by dotted name in a folder or a wheel, without importing them."""

from __future__ import annotations

import ast
import difflib
import hashlib
import inspect
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlax_plugin.errors import RlaxError

_MOST_NEAREST = 3  # places where a symbol may have gone


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


class SourcesError(RlaxError):
    """Sources that cannot be read."""


class Sources:
    """The sources of a package.

    Args:
      root: a wheel, or a folder such as ``site-packages``.

    Raises:
      SourcesError: it is neither; its methods also raise it for a module that is not Python.
    """

    def __init__(self, root: Path):
        try:
            self._root = zipfile.Path(root) if root.is_file() else root
        except zipfile.BadZipFile as error:
            raise SourcesError(f"{root} is not a wheel or is damaged; remove it") from error
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
                raise SourcesError(f"{path} cannot be read: {error}") from error
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
