"""Another local user who looks into files and processes: JSON in, JSON out.

Its order names them all, also those in directories that it could not list.
"""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any

OF_A_PROCESS = ("cmdline", "environ", "maps", "mem", "fd", "cwd", "root", "exe", "task", "status")


def opens(path: str, flags: int) -> bool:
    """True if a file or directory can be opened; it is left as it was."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def looked_at(paths: Iterable[str]) -> dict[str, list[str]]:
    """The paths that can be read, written, and in which files can be made."""
    paths = list(paths)
    folders = [path for path in paths if os.path.isdir(path)]
    return {
        "readable": [path for path in paths if opens(path, os.O_RDONLY)],
        "writable": [path for path in paths if opens(path, os.O_WRONLY)],
        "grows": [path for path in folders if os.access(path, os.W_OK | os.X_OK)],
    }


def process(pid: int) -> dict[str, Any]:
    """The entries of a process that can be read, with what they say."""
    found: dict[str, Any] = {}
    for name in OF_A_PROCESS:
        path = f"/proc/{pid}/{name}"
        try:
            if name in ("fd", "task"):
                found[name] = os.listdir(path)
            elif name in ("cwd", "root", "exe"):
                found[name] = os.readlink(path)
            else:
                with open(path, "rb") as file:
                    found[name] = file.read(1 << 20).decode(errors="replace")
        except OSError:
            continue
    return found


def main() -> None:
    order = json.load(sys.stdin)
    pids = {pid: process(pid) for pid in order["pids"]}
    json.dump({"user": os.getuid(), **looked_at(order["paths"]), "processes": pids}, sys.stdout)


if __name__ == "__main__":
    main()
