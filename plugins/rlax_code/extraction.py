"""Finds the code in a completion."""

from __future__ import annotations

import re

_LANGUAGES = ("", "py", "python", "python3")
# Possessive: a line of 3,000 tildes and a backtick would be tried for minutes otherwise.
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)


def code_of(completion: str) -> str:
    """Returns the last fenced block that is marked as Python, or not marked at all.

    A block begins with a line of three or more backticks or tildes, and ends with a line of at
    least as many; an unclosed block reaches to the end. If there is no such block, the whole
    completion is taken as code, since some models answer that way. Blocks of other languages do not
    count.
    """
    found: str | None = None
    opened: tuple[str, int] | None = None  # the fence, and where its block begins
    python = False
    for match in _FENCE.finditer(completion):
        fence, language = match[1], match[2]
        if opened is None:
            opened, python = (fence, match.end() + 1), language.lower() in _LANGUAGES
        elif fence[0] == opened[0][0] and len(fence) >= len(opened[0]) and not language:
            if python:
                found = completion[opened[1] : match.start()]
            opened = None
    if opened is not None and python:
        found = completion[opened[1] :]
    return completion if found is None else found
