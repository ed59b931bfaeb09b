"""What another user of this machine can read; needs root, who can become any user."""

import json
import os
from pathlib import Path
from typing import Any

STRANGER = 65_534


def readable_by_stranger(*roots: Path) -> dict[str, list[str]]:
    """Tries to list every directory and to read every file below some directories.

    Returns:
      ``read``: what can be read, ``refused``: what raises PermissionError; paths, sorted.
    """
    source, target = os.pipe()
    # The child has all it needs in memory: Python may lie where that user may not read.
    if not (pid := os.fork()):
        status = 1
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            found: dict[str, Any] = {"read": [], "refused": []}
            for root in roots:
                _try(str(root), found)
            with os.fdopen(target, "w") as out:
                json.dump({name: sorted(paths) for name, paths in found.items()}, out)
            status = 0
        finally:
            os._exit(status)
    os.close(target)
    with os.fdopen(source) as told:
        text = told.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"looking as user {STRANGER} failed"
    return json.loads(text)


def _try(path: str, found: dict[str, Any]) -> None:
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            names = os.listdir(path)
            found["read"].append(path)
            for name in names:
                _try(f"{path}/{name}", found)
        else:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            found["read"].append(path)
    except PermissionError:
        found["refused"].append(path)
    except OSError:
        pass  # a socket, or gone
