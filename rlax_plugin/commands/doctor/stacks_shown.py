"""Shortens the stacks of a process to the threads that matter."""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEAD = re.compile(r"^(?:Current thread|Thread) (0x[0-9a-f]+)")
_SHOWN = ("MainThread", "controller", "event loop")
_IDLE = ("threading.py", "selectors.py", "queue.py", "thread.py", "socket.py", "socketserver.py")
_FRAMES = 6


def shortened(text: str, names: Mapping[str, str]) -> list[str]:
    """Returns the innermost frames of the main threads, and of all others that do not just wait.

    Args:
      text: as ``faulthandler`` writes it.
      names: names of threads by their number in the text.
    """
    lines: list[str] = []
    for number, frames in threads(text):
        name = names.get(number, "")
        innermost = frames[0].split('"')[1] if frames and '"' in frames[0] else ""
        if name in _SHOWN or not innermost.endswith(_IDLE):
            lines.append(f"{name or number}:")
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
