"""Runs a command as an ordinary user: ``python ordinary_user.py [UID] COMMAND ...``, as root.

Python and this repository may lie below a directory that only root may enter. In a mount namespace
of its own the command sees nothing else of such a directory.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rlax_plugin.reward.sandbox import kernel

USER = 61_234
REPOSITORY = Path(__file__).parents[2]


def main() -> None:
    command = sys.argv[1:]
    user = int(command.pop(0)) if command[0].isdigit() else USER
    os.unshare(os.CLONE_NEWNS)
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).absolute(), REPOSITORY.resolve()]
    while closed := next(filter(None, map(_closed, needed)), None):
        inside = [path for path in needed if path.is_relative_to(closed)]
        files = [os.open(path, os.O_PATH) for path in inside]
        kernel.mount("tmpfs", str(closed), "tmpfs", options="mode=755")
        for path, file in zip(inside, files, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{file}", str(path), flags=kernel.MS_BIND | kernel.MS_REC)
            os.close(file)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.execv(command[0], command)


def _closed(path: Path) -> Path | None:
    """The uppermost directory on the way to it that others may not enter."""
    return next((one for one in reversed(path.parents) if not one.stat().st_mode & 1), None)


if __name__ == "__main__":
    main()
