r"""Finds the answer in a completion.

A completion may say many things before its answer, and say the answer several times. Each rule
finds at most one answer, always the last one, so that listing guesses does not help:

- ``whole``: the whole text.
- ``last_line``: the last line that is not blank.
- ``marker``: the first line that is not blank after the last occurrence of the marker, beginning
  on the marker's own line.
- ``tag``: the text between the last closing tag, such as ``</answer>``, and the last opening tag
  before it.
- ``boxed``: the content of the last ``\boxed{...}`` or ``\fbox{...}`` whose braces are balanced. If
  that contains another box, the last one inside it counts.

White space around an answer is removed. All rules take time linear in the length of the text.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from rlax_plugin.api import Section

Place = Literal["whole", "last_line", "marker", "tag", "boxed"]
PLACES = (
    "whole: the whole text; last_line: its last line that is not blank; marker: the line behind "
    "the last `marker`; tag: what is in the last <`tag`>...</`tag`>; boxed: what is in the last "
    "\\boxed{...}"
)

# A backslash takes the next character with it, so that \{ and \} are no braces.
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*+\{|\\.|[{}]", re.DOTALL)


class AnswerConfig(Section):
    """Options of rewards that read an answer."""

    answer: Place = Field("whole", description=f"which part of the completion it is. {PLACES}")
    marker: str = Field("####", min_length=1, description="text before the answer")
    tag: str = Field("answer", min_length=1, description="name of the tag around the answer")


def answer_in(text: str, place: Place, *, marker: str = "####", tag: str = "answer") -> str | None:
    """Returns the answer in a text; None if there is none at that place.

    Args:
      text: the completion.
      place: rule by which the answer is found.
      marker, tag: not empty.
    """
    if place == "whole":
        return text.strip()
    if place == "last_line":
        return text.rstrip().rpartition("\n")[2].strip()
    if place == "boxed":
        return _boxed(text)
    if place == "tag":
        before, found, _ = text.rpartition(f"</{tag}>")
        _, opened, answer = before.rpartition(f"<{tag}>")
        return answer.strip() if found and opened else None
    _, found, behind = text.rpartition(marker)
    return behind.lstrip().partition("\n")[0].strip() if found else None


def _boxed(text: str) -> str | None:
    last: tuple[int, int] | None = None
    opened: list[tuple[bool, int, tuple[int, int] | None]] = []  # is a box, start, box inside it
    for match in _BRACES.finditer(text):
        token = match[0]
        if token == "{" or "box" in token:
            opened.append((token != "{", match.end(), None))
        elif token == "}" and opened:
            is_box, start, inside = opened.pop()
            if is_box and inside is None:
                inside = start, match.start()
            if inside is not None:
                last = inside
                if opened:
                    opened[-1] = *opened[-1][:2], inside
    return None if last is None else text[slice(*last)].strip()
