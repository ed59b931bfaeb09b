"""Moves a process into new namespaces. Imports nothing of the project but this package.

The process that holds the sandbox writes the tables of uids, since only it may.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Collection

from rlax_plugin.reward.sandbox import kernel, view

FLAGS = {
    "user namespace": os.CLONE_NEWUSER,
    "pid namespace": os.CLONE_NEWPID,
    "mount namespace": os.CLONE_NEWNS,
    "network namespace": os.CLONE_NEWNET,
    "ipc namespace": os.CLONE_NEWIPC,
    "uts namespace": os.CLONE_NEWUTS,
}
NAMESPACES = tuple(FLAGS)
_HIGH = 2_000_000_000  # far above the uids of users, and of containers
_PIDS = 1 << 22  # the kernel's largest
TESTED_UID = 1
"""The uid of tested code inside a user namespace."""
HOST_NAME = "sandbox"
"""The machine's name inside a uts namespace."""


def enter(
    layers: Collection[str],
    tell_unshared: Callable[[], None],
    seen: view.Seen | None = None,
    uid: int = TESTED_UID,
) -> None:
    """Enters every namespace among the layers; only children are in a new pid namespace.

    Args:
      layers: names of the layers.
      tell_unshared: has the uid tables written, and returns when they are.
      seen: what programs see; None: Python code, which may execute none.
      uid: of what will run, as it is inside.

    Raises:
      OSError: the kernel does not allow one of them.
    """
    root, flags = os.geteuid() == 0, 0
    for name in layers:
        flags |= FLAGS.get(name, 0)
    mounts = "mount namespace" in layers
    if root and mounts:  # inside the user namespace it may not look into root's directories
        os.unshare(os.CLONE_NEWNS)
        mapped = unused_uid(os.getpid()) if "user namespace" in layers else 0
        view.build(seen, mapped + uid)
    if flags:
        os.unshare(flags)
    if "user namespace" in layers:
        tell_unshared()
        if root:
            os.setgroups([])
        os.setresgid(*[0 if root else TESTED_UID] * 3)
        os.setresuid(*[0 if root else TESTED_UID] * 3)
    if "uts namespace" in layers:
        kernel.set_host_name(HOST_NAME)
    if mounts and not root:
        view.build(seen, uid)
    if seen is not None and "network namespace" in layers:
        kernel.bring_up_loopback()


def write_tables(pid: int, user: int, group: int) -> None:
    """Writes the tables of users and groups of a process's new user namespace.

    Root gets two unused ids; any other user only its own.

    Args:
      pid: the process.
      user, group: its user and group before it entered the namespace.
    """
    if user == 0:
        users = groups = f"0 {unused_uid(pid)} 2"
    else:
        users, groups = f"{TESTED_UID} {user} 1", f"{TESTED_UID} {group} 1"
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", users)
    _write(f"/proc/{pid}/gid_map", groups)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def unused_uid(pid: int) -> int:
    """Returns the first of two uids that no user and no other sandbox has, derived from ``pid``.

    Raises:
      OSError: this process knows too few uids, as in some containers.
    """
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    first, _, count = max(ranges, key=lambda one: one[2])
    highest = min(first + count, 1 << 31)
    offset = 2 * (pid % _PIDS)
    for candidate in (_HIGH + offset, highest - 2 - offset % 1000):
        if first + 1000 <= candidate and candidate + 2 <= highest and not _is_user(candidate):
            return candidate
    raise OSError(1, f"no uid is free among the {count} of this container")


def _is_user(uid: int) -> bool:
    for one in (uid, uid + 1):
        try:
            pwd.getpwuid(one)
        except KeyError:
            continue
        return True
    return False
