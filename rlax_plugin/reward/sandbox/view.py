"""The files that tested code sees: Python, its standard library, and an empty work directory.

Imports nothing of the project but system calls.
"""

from __future__ import annotations

import functools
import glob
import os
import sys

from rlax_plugin.reward.sandbox import kernel

WORK = "/tmp"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_PACKAGES = ("*/site-packages", "*/dist-packages", "site-packages", "dist-packages")


@functools.cache  # each piece of code needs it, in a fork that begins with the result
def readable() -> tuple[str, ...]:
    """Returns directories and files of Python and the system's libraries, at their own paths."""
    standard = os.path.dirname(os.path.realpath(os.__file__))
    python = os.path.join(os.path.realpath(sys.base_prefix), "lib")
    paths = [path for path in (standard, python, *_SYSTEM) if os.path.exists(path)]
    return tuple(path for path in dict.fromkeys(paths) if not _is_inside(path, paths))


def _is_inside(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in others)


@functools.cache
def devices() -> tuple[str, ...]:
    """Returns device files that are harmless, and that libraries expect."""
    return tuple(path for path in _DEVICES if os.path.exists(path))


def build() -> None:
    """Gives this mount namespace a read-only root directory; the old one is out of reach.

    ``WORK`` is an empty directory to mount something on.

    Raises:
      OSError: the kernel does not allow it.
    """
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    sources = {path: _source(path) for path in (*readable(), *devices())}
    root = WORK  # any directory will do: what it hides is seen through the open files
    options = "mode=755,size=1m,nr_inodes=1000"
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    for path, source in sources.items():
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if isinstance(source, str):
            os.symlink(source, target)
            continue
        if os.path.isdir(f"/proc/self/fd/{source}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
        kernel.mount(f"/proc/self/fd/{source}", target, flags=kernel.MS_BIND | kernel.MS_REC)
        os.close(source)
        for pattern in _PACKAGES:
            for packages in glob.glob(os.path.join(target, pattern)):
                kernel.mount("tmpfs", packages, "tmpfs", options="mode=755,size=4k")
    os.makedirs(root + WORK, exist_ok=True)
    kernel.protect_mount(root)
    kernel.change_root(root)


def _source(path: str) -> int | str:
    """Returns an open file, or the target of a symbolic link."""
    return os.readlink(path) if os.path.islink(path) else os.open(path, os.O_PATH | os.O_CLOEXEC)


def new_work_place(space_bytes: int) -> None:
    """Mounts an empty file system of limited size at ``WORK``; needs a mount namespace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"mode=1777,size={space_bytes},nr_inodes=1024"
    kernel.mount("tmpfs", WORK, "tmpfs", flags, options)
