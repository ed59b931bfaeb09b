"""Counts how the code is kept: cycles of imports, arrows between rooms, sizes, docstrings.

``python tests/helpers/house_counts.py [ROOT]`` prints a table, and each cycle. An import counts
wherever in a module it stands: in a function, or under ``TYPE_CHECKING``, too.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("rlax_plugin", "maxtext_overrides", "plugins")
QUESTIONS = frozenset(("What", "Whether", "Where", "How", "Who", "Which", "Why", "When"))
MOST_ARGUMENTS = 8
_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    )
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Module:
    """A module that was read.

    Attributes:
      path: below the root.
      name: dotted, as it is imported.
    """

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        """Its size."""
        return self.text.count("\n")

    @property
    def room(self) -> str:
        """The folder or single file below ``rlax_plugin`` or ``maxtext_overrides``; a plug-in."""
        parts = self.name.split(".")
        return parts[0] if self.path.parts[0] == "plugins" else ".".join(parts[:2])


def read(root: Path) -> dict[str, Module]:
    """Name -> module, of all code that is installed; what was generated from protocols is not."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            below = path.relative_to(root)
            parts = below.with_suffix("").parts[folder == "plugins" :]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            found[name] = Module(below, name, text, ast.parse(text))
    return found


def imported(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """The modules that a module imports, wherever in it; a package's name is its ``__init__``."""
    package = module.name if module.path.name == "__init__.py" else module.name.rpartition(".")[0]
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")
                above = above[: len(above) - node.level + 1]
                base = ".".join((*above, *filter(None, (node.module,))))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found & modules.keys()


def cycles(arrows: Mapping[str, set[str]]) -> list[list[str]]:
    """The largest sets of nodes of which each leads to each other one, sorted (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in path:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            place = path.index(node)
            group = path[place:]
            del path[place:]
            if len(group) > 1 or node in arrows.get(node, ()):
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found)


def import_cycles(modules: Mapping[str, Module]) -> list[list[str]]:
    """The cycles of modules, lazy imports counted."""
    return cycles({name: imported(module, modules) for name, module in modules.items()})


def room_arrows(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Room -> the other rooms that it imports from."""
    found: dict[str, set[str]] = {}
    for module in modules.values():
        others = {modules[name].room for name in imported(module, modules)}
        found.setdefault(module.room, set()).update(others - {module.room})
    return found


def docstrings(module: Module) -> Iterator[ast.Constant]:
    """The docstrings of a module, its classes and functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def code_lines(module: Module) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    told = {line for one in docstrings(module) for line in range(one.lineno, _end(one) + 1)}
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - told)


def _end(node: ast.expr) -> int:
    return node.end_lineno or node.lineno


def questions(module: Module) -> int:
    """Docstrings that begin as a question does."""
    words = (str(one.value).split(maxsplit=1)[:1] for one in docstrings(module))
    return sum(word[0].strip(",:;.'\"`") in QUESTIONS for word in words if word)


def callables(module: Module) -> int:
    """Arguments and fields whose type names ``Callable``."""
    found = 0
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += sum(_is_callable(one.annotation) for one in _arguments(node))
        elif isinstance(node, ast.ClassDef):
            fields = (one for one in node.body if isinstance(one, ast.AnnAssign))
            found += sum(_is_callable(one.annotation) for one in fields)
    return found


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    has = node.args
    return [one for one in (*has.posonlyargs, *has.args, *has.kwonlyargs, has.vararg) if one]


def _is_callable(annotation: ast.expr | None) -> bool:
    nodes = () if annotation is None else ast.walk(annotation)
    return any(
        (isinstance(node, ast.Name) and node.id == "Callable")
        or (isinstance(node, ast.Attribute) and node.attr == "Callable")
        for node in nodes
    )


def large_constructors(module: Module) -> list[str]:
    """Classes whose ``__init__`` takes more than eight arguments, besides ``self``."""
    return [
        f"{module.name}.{node.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, ast.FunctionDef) and one.name == "__init__"
        if len(_arguments(one)) - 1 > MOST_ARGUMENTS
    ]


def counts(modules: Mapping[str, Module]) -> dict[str, str]:
    """The rows of the table."""
    every = list(modules.values())
    largest = max(every, key=lambda module: module.lines)
    arrows, found = room_arrows(modules), import_cycles(modules)
    between, large = cycles(arrows), sum(len(large_constructors(one)) for one in every)
    return {
        "cycles of imports, lazy ones counted": f"{len(found):,}",
        "modules in cycles": f"{sum(map(len, found)):,}",
        "cycles of rooms": f"{len(between):,}",
        "arrows between rooms": f"{sum(map(len, arrows.values())):,}",
        "rooms": f"{len(arrows):,}",
        "modules": f"{len(every):,}",
        "lines of a module, median": f"{statistics.median(one.lines for one in every):g}",
        "lines of a module, largest": f"{largest.lines:,} ({largest.path})",
        "lines of code": f"{sum(map(code_lines, every)):,}",
        "callable arguments and fields": f"{sum(map(callables, every)):,}",
        "constructors with more than 8 arguments": f"{large:,}",
        "docstrings that begin with a question": f"{sum(map(questions, every)):,}",
    }


def main(root: Path = ROOT) -> None:
    """Prints the table, the cycles, and the rooms that import each other."""
    modules = read(root)
    print("| count | value |\n| --- | --- |")
    for name, value in counts(modules).items():
        print(f"| {name} | {value} |")
    for title, some in (
        ("cycle of imports", import_cycles(modules)),
        ("cycle of rooms", cycles(room_arrows(modules))),
    ):
        for group in some:
            print(f"{title}: {', '.join(group)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
