"""The command of every Python child process."""

from __future__ import annotations

import sys


def python_command(*arguments: str) -> list[str]:
    """Returns the command that runs this Python with arguments such as ``-m``, module and words.

    ``-m`` and ``-c`` alone would import from the working directory first. That may be one in which
    others can write, such as /tmp, and a ``json.py`` there would run with the rights of this user.
    """
    return [sys.executable, "-P", *arguments]
