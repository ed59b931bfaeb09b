"""Shortens the stacks of a process to the threads that matter."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_MATTER = ("MainThread", "controller", "publish", "event loop")
_FRAMES = 6


def shortened(text: str, names: Mapping[str, str]) -> list[str]:
    """Returns the innermost frames of the main thread and of this project's own threads.

    Args:
      text: as ``faulthandler`` writes it.
      names: names of threads by their number in the text.
    """
    lines: list[str] = []
    for number, frames in threads(text):
        name = names.get(number, "")
        if name in _MATTER:
            lines.append(f"{name}:")
            lines += [f"  {frame}" for frame in frames[:_FRAMES]]
    return lines or text.strip().splitlines()[: 4 * _FRAMES]


def threads(text: str) -> list[tuple[str, list[str]]]:
    """Returns the number of each thread, and its frames, the innermost first."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            found.append((head[1], []))
        elif found and line.strip().startswith("File "):
            found[-1][1].append(line.strip())
    return found
