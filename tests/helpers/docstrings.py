"""Reads the docstrings of the code and finds those that are not plain sentences.

As a command, ``python tests/helpers/docstrings.py [ROOM ...]``, it lists the offending docstrings
and then counts them by room.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from plain_words import found

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("rlax_plugin", "plugins", "maxtext_overrides")
    for path in (ROOT / folder).rglob("*.py")
    if "_pb2" not in path.name  # generated from rlax.proto
)
QUESTION = re.compile(r"(?:What|Whether|Where|How|Who|Which|Why|When)(?:ever|s?oever)?\b", re.I)
SECTION = re.compile(r"(Args|Arguments|Attributes|Fields|Returns|Yields|Raises|Keys):$")
ITEM = re.compile(r"(\*{0,2}[\w.`, /\[\]]+?)(?: \([^)]*\))?: +(.*)")
_LINE = 100  # columns, as in pyproject.toml

type Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Offence(NamedTuple):
    """A docstring, or a description in one of its sections, that a test of words rejects."""

    path: Path
    line: int
    kind: str
    text: str


def room(path: Path) -> str:
    """The folder, or the module beside them, that a source file belongs to: ``rlax_plugin/rpc``."""
    return "/".join(path.relative_to(ROOT).parts[:2]).removesuffix(".py")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring of a module, its classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        if isinstance(node.value.value, str):  # not an ellipsis
            yield node.lineno, inspect.cleandoc(node.value.value)


def descriptions(text: str) -> Iterator[tuple[int, str]]:
    """Line within a docstring and text of each description in its Google sections."""
    inside, margin = "", 0
    for number, line in enumerate(text.splitlines()):
        indent = len(line) - len(line.lstrip())
        if heading := SECTION.match(line):
            inside, margin = heading[1], 0
        elif line and not indent:
            inside = ""
        elif line and inside and (not margin or indent == margin):
            first, margin = not margin, indent
            if item := ITEM.match(line.strip()):
                yield number, item[2]
            elif first:
                yield number, line.strip()


def offences(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each docstring or description that is not plain.

    The kinds are ``question`` (begins with a question word), ``period`` (the first line does not
    end with a period), ``long`` (the first line is over 100 columns) and ``words`` (a phrase that
    ``plain_words`` bans).
    """
    lines = source.splitlines()
    for line, text in docstrings(source):
        first = text.partition("\n")[0]
        if QUESTION.match(first):
            yield line, "question", first
        for offset, described in descriptions(text):
            if QUESTION.match(described):
                yield line + offset, "question", described
        if not first.endswith("."):
            yield line, "period", first
        if len(lines[line - 1]) > _LINE:
            yield line, "long", first
        for hit in found(text.replace("``", "`")):
            yield line, "words", hit


def offending(paths: list[Path] = SOURCES) -> Iterator[Offence]:
    """All offences in these source files."""
    for path in paths:
        for line, kind, text in offences(path.read_text()):
            yield Offence(path.relative_to(ROOT), line, kind, text)


def main(rooms: list[str]) -> None:
    """Prints the offences in these rooms, or in all, and their counts by room."""
    paths = [path for path in SOURCES if not rooms or room(path) in rooms]
    hits = list(offending(paths))
    for hit in hits:
        print(f"{hit.path}:{hit.line}: {hit.kind}: {hit.text}")
    kinds = ("question", "period", "long", "words")
    print(f"\n{'room':34}{'docstrings':>11}" + "".join(f"{kind:>10}" for kind in kinds))
    counts = Counter((room(ROOT / hit.path), hit.kind) for hit in hits)
    totals = Counter(room(path) for path in paths for _ in docstrings(path.read_text()))
    for name, total in sorted(totals.items()):
        print(f"{name:34}{total:11}" + "".join(f"{counts[name, kind]:10}" for kind in kinds))
    sums = [sum(n for (_, found), n in counts.items() if found == kind) for kind in kinds]
    print(f"{'all':34}{totals.total():11}" + "".join(f"{n:10}" for n in sums))


if __name__ == "__main__":
    main(sys.argv[1:])
