"""The files that tested code sees: Python, its standard library, and an empty work directory.

Programs see the programs of the system and the packages of Python as well. Imports nothing of the
project but system calls.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from rlax_plugin.reward.sandbox import kernel

WORK = "/tmp"
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_PROGRAMS = ("/usr", "/bin", "/sbin", "/etc/alternatives", "/etc/localtime", "/etc/nsswitch.conf")
_PROGRAMS += ("/etc/ssl/certs",)
# Neither names of this machine nor of its users.
_OWN_FILES = {
    "/etc/passwd": "root:x:0:0::/:/bin/sh\nsandbox:x:1:1::/tmp:/bin/sh\n",
    "/etc/group": "root:x:0:\nsandbox:x:1:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n",
}
_SHARED = "/dev/shm"
_OWN = (*_OWN_FILES, _SHARED)
_OF_PYTHON = ("bin", "lib", "lib64", "include", "pyvenv.cfg")
_PACKAGES = ("*/site-packages", "*/dist-packages", "site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Seen:
    """What programs see.

    Attributes:
      paths: directories and files to read and execute, beside the system's and Python's.
      space_bytes: size of all files in ``WORK``, which stay until the sandbox ends.
      places: names at the root, such as ``app``, which lead to directories in ``WORK``.
    """

    paths: tuple[str, ...]
    space_bytes: int
    places: tuple[str, ...] = ()


@functools.cache  # each piece of code needs it, in a fork that begins with the result
def readable(seen: Seen | None = None) -> tuple[str, ...]:
    """Returns directories and files of Python and the system's libraries, at their own paths.

    Args:
      seen: None: Python code, which may execute no programs.
    """
    standard = os.path.dirname(os.path.realpath(os.__file__))
    python = os.path.realpath(sys.base_prefix)
    wanted = (standard, os.path.join(python, "lib"), *_SYSTEM)
    if seen is not None:
        wanted = (*wanted, *of_python(python), *_PROGRAMS, *seen.paths)
    paths = [path for path in wanted if os.path.exists(path)]
    return tuple(path for path in dict.fromkeys(paths) if not _is_inside(path, paths))


def of_python(prefix: str) -> list[str]:
    """Returns what programs need of a Python; not files such as pip.conf, which may have keys."""
    paths = [os.path.join(prefix, name) for name in _OF_PYTHON]
    return [path for path in paths if os.path.exists(path)]


def check_see_paths(paths: Iterable[str]) -> None:
    """Checks directories and files of this machine that programs shall see.

    Raises:
      ValueError: one is not absolute, does not exist, or has a file of the sandbox's own at or
        below its place; names it.
    """
    for path in paths:
        if not os.path.isabs(path) or ".." in path.split("/"):
            raise ValueError(f"{path!r} is not absolute, without ..")
        if not os.path.exists(path):
            raise ValueError(f"{path!r} does not exist")
        place = os.path.normpath(path)
        for own in (WORK, *_OWN):
            if own == place or _is_inside(own, [place.rstrip("/")]):
                raise ValueError(f"{path!r} would hide {own} of the sandbox")


def _is_inside(path: str, others: list[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in others)


@functools.cache
def devices() -> tuple[str, ...]:
    """Returns device files that are harmless, and that libraries expect."""
    return tuple(path for path in _DEVICES if os.path.exists(path))


def build(seen: Seen | None = None, owner: int = 0) -> None:
    """Gives this mount namespace a read-only root directory; the old one is out of reach.

    Args:
      seen: None: ``WORK`` is an empty directory to mount something on. Otherwise it is an empty
        file system of limited size.
      owner: uid that owns this one, as this process sees it.

    Raises:
      OSError: the kernel does not allow it.
    """
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    given = seen.paths if seen is not None else ()
    sources = {path: _source(path, given) for path in (*readable(seen), *devices())}
    root = WORK  # any directory will do: what it hides is seen through the open files
    options = "mode=755,size=1m,nr_inodes=1000"
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    os.mkdir(root + WORK)
    if seen is not None:  # before the others: Python may be in there, too
        _mount_work_place(root + WORK, seen, owner)
        _add_own_files(root)  # later they could be files of this machine, mounted there
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
        for pattern in _PACKAGES if seen is None else ():
            for packages in glob.glob(os.path.join(target, pattern)):
                kernel.mount("tmpfs", packages, "tmpfs", options="mode=755,size=4k")
    if seen is not None:
        for place in seen.places:
            os.mkdir(f"{root}{WORK}/{place}")
            os.chown(f"{root}{WORK}/{place}", owner, owner)
            os.symlink(f"{WORK}/{place}", f"{root}/{place}")
    kernel.protect_mount(root)
    if seen is not None:
        kernel.allow_writing(root + WORK)
    kernel.change_root(root)


def _source(path: str, given: tuple[str, ...]) -> int | str:
    """Returns an open file, or the target of a symbolic link of the system's."""
    if os.path.islink(path) and path not in given:
        return os.readlink(path)
    return os.open(path, os.O_PATH | os.O_CLOEXEC)


def _add_own_files(root: str) -> None:
    for path in _OWN:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
    os.symlink(WORK, root + _SHARED)
    for path, text in _OWN_FILES.items():
        with open(root + path, "w") as file:
            file.write(text)
        os.chmod(root + path, 0o444)


def _mount_work_place(path: str, seen: Seen, owner: int) -> None:
    inodes = max(1024, seen.space_bytes >> 13)
    options = f"mode=1777,size={seen.space_bytes},nr_inodes={inodes},uid={owner},gid={owner}"
    kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)


def new_work_place(space_bytes: int) -> None:
    """Mounts an empty file system of limited size at ``WORK``; needs a mount namespace."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    options = f"mode=1777,size={space_bytes},nr_inodes=1024"
    kernel.mount("tmpfs", WORK, "tmpfs", flags, options)
