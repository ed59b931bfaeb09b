"""Moves modules to other folders, and rewrites what names them: imports, strings, pages.

    .venv/bin/python .ci/moves/move.py .ci/moves/rooms.txt

Each line of a table is the old and the new path of a file or of a folder. Nothing else changes: a
module whose own name changes is called by its new name where it was imported by its name. What a
dissolved package exported is imported from the module that owns it. ``ruff check --fix`` and ``ruff
format`` put the imports in order afterwards.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("rlax_plugin", "maxtext_overrides", "plugins", "tests", "benchmarks", "docs", "configs")
SINGLE = ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")
TEXTS = {".py", ".md", ".yml", ".toml", ".jinja", ".html", ""}
DONE = "\0"  # a dot of a name that is new already
DISSOLVED = {"rlax_plugin.parameter_server": "rlax_plugin.weights"}
PARENTS = re.compile(r"(__file__\)(?:\.resolve\(\))?\.parents\[)(\d)")

Edit = tuple[int, int, int, int, str]  # of rows and columns, as ast counts them, by a text


def dotted(path: str) -> str:
    """The module of a path."""
    name = path.removesuffix(".py").removesuffix("/__init__").removeprefix("plugins/")
    return name.replace("/", ".")


def read_table(table: Path) -> dict[str, str]:
    """Old path -> new path, of single files."""
    moves: dict[str, str] = {}
    for line in table.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        old, new = line.split()
        files = sorted(Path(old).rglob("*")) if Path(old).is_dir() else [Path(old)]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                moves[str(file)] = new + str(file).removeprefix(old)
    return moves


def exported(package: str) -> dict[str, str]:
    """Name -> module that owns it, of what a package exports."""
    source = Path(package.replace(".", "/")) / "__init__.py"
    nodes = [n for n in ast.parse(source.read_text()).body if isinstance(n, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in nodes for alias in node.names}


def alternation(words: list[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


class Rewriter:
    """Old text -> new text.

    Args:
      moves: old path -> new path.
    """

    def __init__(self, moves: dict[str, str]):
        named = {dotted(a): dotted(b) for a, b in moves.items() if a.endswith(".py")}
        self._modules = {a: b for a, b in named.items() if a != b}
        self._owners = {package: exported(package) for package in DISSOLVED}
        self._dotted = re.compile(rf"(?<![\w./])({alternation(list(self._modules))})(?!\w)")
        self._paths = dict(moves)
        for old, new in moves.items():
            for folder in ("rlax_plugin/", "plugins/"):  # as pages shorten them
                short = old.removeprefix(folder)
                if short != old and "/" in short and "__init__" not in short:
                    self._paths[short] = new.removeprefix("rlax_plugin/").removeprefix("plugins/")
        self._path = re.compile(rf"(?<![\w./])((?:\.\./)*)({alternation(list(self._paths))})(?!\w)")

    def text(self, text: str) -> str:
        """Dotted names and paths, wherever they stand."""
        for package, owners in self._owners.items():
            text = re.sub(
                rf"from {re.escape(package)} import (\w+)\b(?!,)",
                lambda m, owners=owners: f"from {owners[m[1]]} import {m[1]}",
                text,
            )
        text = self._dotted.sub(lambda m: self._modules[m[1]], text)
        for package, room in DISSOLVED.items():
            text = re.sub(rf"(?<![\w.]){re.escape(package)}(?![\w.])", room, text)
        text = self._path.sub(lambda m: m[1] + self._paths[m[2]], text)
        return text.replace(DONE, ".")

    def python(self, text: str) -> str:
        """Imports of modules from packages, in which no dotted name stands."""
        tree = ast.parse(text)
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        taken = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
        taken |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        renamed: dict[str, str] = {}
        edits: list[Edit] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                edits += self._import(node, taken, renamed)
        edits += [(*_span(n), renamed[n.id]) for n in names if n.id in renamed]
        return _edited(text, edits)

    def _import(
        self, node: ast.ImportFrom, taken: set[str], renamed: dict[str, str]
    ) -> Iterator[Edit]:
        found: dict[str, list[str]] = {}
        for alias in node.names:
            module, name = node.module or "", alias.name
            bound = alias.asname
            if new := self._modules.get(f"{module}.{name}"):
                module, _, name = new.rpartition(".")
                module = module.replace(".", DONE)
                if name != alias.name and not bound:
                    if {name, alias.name} & taken:
                        bound = alias.name
                    else:
                        renamed[alias.name] = name
            elif node.module in self._owners:
                module = self._owners[node.module][name]
            found.setdefault(module, []).append(f"{name} as {bound}" if bound else name)
        if list(found) != [node.module]:
            lines = [f"from {module} import {', '.join(names)}" for module, names in found.items()]
            yield (*_span(node), f"\n{' ' * node.col_offset}".join(lines))


def _span(node: ast.stmt | ast.expr) -> tuple[int, int, int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _edited(text: str, edits: list[Edit]) -> str:
    lines = text.splitlines(keepends=True)
    for row, column, end_row, end_column, new in sorted(edits, reverse=True):
        head = lines[row - 1].encode()[:column].decode()  # columns count bytes
        tail = lines[end_row - 1].encode()[end_column:].decode()
        lines[row - 1 : end_row] = (head + new + tail).splitlines(keepends=True)
    return "".join(lines)


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def deeper(levels: int, match: re.Match[str]) -> str:
    return f"{match[1]}{int(match[2]) + levels}"


def main() -> None:
    moves = read_table(Path(sys.argv[1]))
    rewriter = Rewriter(moves)
    for path in map(Path, git("ls-files").splitlines()):
        inside = path.parts[0] in FOLDERS or str(path) in SINGLE
        if not inside or path.suffix not in TEXTS or not path.is_file():
            continue
        old = path.read_text()
        code = path.suffix == ".py" and not path.stem.startswith("rlax_pb2")
        new = rewriter.text(rewriter.python(old) if code else old)
        if code and str(path) in moves:
            levels = moves[str(path)].count("/") - str(path).count("/")
            new = PARENTS.sub(functools.partial(deeper, levels), new)
        if new != old:
            path.write_text(new)
    for old, new in moves.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        git("mv", old, new)
    for package in DISSOLVED:
        git("rm", "-qf", package.replace(".", "/") + "/__init__.py")
    print(f"moved {len(moves)} files")


if __name__ == "__main__":
    main()
