"""Renames whole words in Python files, by a table: ``names.py TABLE``; see ``names.txt``."""

from __future__ import annotations

import re
import sys
import tokenize
from io import StringIO
from pathlib import Path


def renamed(text: str, old: str, new: str) -> str:
    """Names, and what stands in double backticks; a word of prose stays."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(StringIO(text).readline))):
        (row, column), (end_row, end_column) = token.start, token.end
        if token.type == tokenize.NAME and token.string == old:
            line = lines[row - 1]
            lines[row - 1] = line[:column] + new + line[end_column:]
        elif token.type in (tokenize.STRING, tokenize.COMMENT) and old in token.string:
            quoted = re.sub(r"``[^`]+``", lambda m: pattern.sub(new, m[0]), token.string)
            quoted = re.sub(
                rf"rlax_plugin\.[\w.]*\b{re.escape(old)}\b",
                lambda m: m[0].removesuffix(old) + new,
                quoted,
            )
            head, tail = lines[row - 1][:column], lines[end_row - 1][end_column:]
            lines[row - 1 : end_row] = (head + quoted + tail).splitlines(keepends=True)
    return "".join(lines)


def main() -> None:
    for line in Path(sys.argv[1]).read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        old, new, *places = line.split()
        for place in map(Path, places):
            for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
                text = path.read_text()
                if old in text and (found := renamed(text, old, new)) != text:
                    path.write_text(found)


if __name__ == "__main__":
    main()
