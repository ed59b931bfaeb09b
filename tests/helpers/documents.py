"""Reads the documents: README.md, CONTRIBUTING.md and what is under docs/."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def read(name: str) -> str:
    """The text of a document under docs/."""
    return (ROOT / "docs" / name).read_text()


def fences(text: str, language: str) -> list[str]:
    """The contents of all code blocks of a language; "" finds those without one."""
    return [body for found, body in _FENCE.findall(text) if found == language]


def prose(text: str) -> str:
    """A document without its code blocks."""
    return _FENCE.sub("", text)


def sections(text: str, level: int) -> dict[str, str]:
    """Heading -> the text below it, up to the next heading of this or a higher level."""
    mark, blanked = "#" * level, _FENCE.sub(lambda m: re.sub(r"^#", " ", m[0], flags=re.M), text)
    heads = list(re.finditer(rf"^(#{{1,{level}}}) (.*)$", blanked, re.MULTILINE))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return {
        head[2]: text[head.end() : end]
        for head, end in zip(heads, ends, strict=True)
        if head[1] == mark
    }
