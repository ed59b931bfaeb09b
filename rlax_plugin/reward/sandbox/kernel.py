"""System calls of Linux that Python does not offer, over ctypes. Imports nothing of the project.

The numbers and structures are those of the kernel's public headers; a call that fails raises an
``OSError`` that names the call.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 22, 24
_PR_SET_SECUREBITS, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 28, 36, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# Root has no special rights, and changing the uid gives none; neither can be undone.
_SECUREBITS = 0b1110_1111
_CAPABILITY_VERSION_3 = 0x20080522

# The same on every architecture that this project knows.
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_ZERO = ctypes.c_ulong(0)


def machine() -> str:
    """Returns the processor's architecture, such as ``x86_64``."""
    return os.uname().machine


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, what: str, *arguments: int | bytes | ctypes.Structure | None) -> int:
    passed = [
        ctypes.c_long(one)
        if isinstance(one, int)
        else ctypes.byref(one)
        if isinstance(one, ctypes.Structure)
        else one
        for one in arguments
    ]
    return _checked(_libc.syscall(ctypes.c_long(number), *passed), what)


def _prctl(
    name: str, option: int, argument: int = 0, third: ctypes.c_void_p | ctypes.c_ulong = _ZERO
) -> None:
    result = _libc.prctl(option, ctypes.c_ulong(argument), third, _ZERO, _ZERO)
    _checked(result, f"prctl({name})")


def end_with_parent(signal: int) -> None:
    """Makes this process get a signal when its parent ends. A change of uid undoes it."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, signal)


def hide_memory() -> None:
    """Keeps processes without privileges from reading this process's memory."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Allows permitted processes, such as a memory watch, to look into this process again."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 1)


def adopt_orphans() -> None:
    """Makes this process the parent of its orphaned descendants."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def no_new_privileges() -> None:
    """Keeps this process and its descendants from gaining rights by a set-uid program."""
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def set_seccomp(program: ctypes.Structure) -> None:
    """Filters the system calls of this process and its descendants by a ``sock_fprog``."""
    address = ctypes.cast(ctypes.byref(program), ctypes.c_void_p)
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, 2, address)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapabilitySets(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint32 * 6),)


def forbid_capabilities() -> None:
    """Removes capabilities from all programs that this process might start; needs CAP_SETPCAP."""
    capability = 0
    with suppress(OSError):  # EINVAL: the kernel knows no more of them
        while True:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
            capability += 1
    if not capability:
        raise OSError(1, "prctl(PR_CAPBSET_DROP): not permitted")
    _prctl("PR_SET_SECUREBITS", _PR_SET_SECUREBITS, _SECUREBITS)


def drop_capabilities() -> None:
    """Gives up all capabilities of this process."""
    _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    _syscall(_CAPSET[machine()], "capset", header, _CapabilitySets())


def set_host_name(name: str) -> None:
    """Sets the host and domain name of this uts namespace."""
    text = name.encode()
    _checked(_libc.sethostname(text, ctypes.c_size_t(len(text))), "sethostname")
    _checked(_libc.setdomainname(text, ctypes.c_size_t(len(text))), "setdomainname")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    def text(value: str) -> bytes | None:
        return os.fsencode(value) if value else None

    passed = text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)
    _checked(_libc.mount(*passed), f"mount {target}")


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace")
    )


def protect_mount(path: str) -> None:
    """Makes a mount and all below it read-only, without set-uid programs."""
    attributes = _MountAttributes(MS_RDONLY | MS_NOSUID)
    size = ctypes.sizeof(attributes)
    what = f"mount_setattr {path}"
    _syscall(_MOUNT_SETATTR, what, _AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, size)


def allow_writing(path: str) -> None:
    """Undoes ``protect_mount`` for one mount: its files can be written."""
    attributes = _MountAttributes(0, MS_RDONLY)
    what, size = f"mount_setattr {path}", ctypes.sizeof(_MountAttributes)
    _syscall(_MOUNT_SETATTR, what, _AT_FDCWD, os.fsencode(path), 0, attributes, size)


def bring_up_loopback() -> None:
    """Makes 127.0.0.1 usable in this network namespace, which needs its CAP_NET_ADMIN."""
    with socket.socket() as any_socket:
        asked = struct.pack("16sH14x", b"lo", 0)
        found = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked)
        flags = struct.unpack("16sH14x", found)[1] | _IFF_UP
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


def change_root(path: str) -> None:
    """Makes a mount the root directory, and unmounts the old one."""
    os.chdir(path)
    _syscall(_PIVOT_ROOT[machine()], "pivot_root", b".", b".")
    # The old root is now mounted over the new one.
    _checked(_libc.umount2(b".", _MNT_DETACH), "umount2 of the old root")
    os.chdir("/")


# ---- Landlock ----

READ_FILE, READ_DIR = 1 << 2, 1 << 3
_EXECUTE, _WRITE_FILE = 1 << 0, 1 << 1
_ALL_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_IOCTL = (1 << 16) - 1  # from version 5 on
_OF_FILES = _EXECUTE | _WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15


class _Ruleset(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("files", "network", "scoped"))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


@functools.cache
def landlock_version() -> int:
    """Returns the version of the interface; from 4 on TCP is covered, from 6 on signals.

    Raises:
      OSError: there is no Landlock.
    """
    return _syscall(_LANDLOCK_CREATE, "landlock_create_ruleset", None, 0, 1)


def restrict_files(
    readable: Iterable[str],
    writable: Iterable[str],
    *,
    devices: Iterable[str] = (),
    programs: bool = False,
) -> None:
    """Forbids opening any other files, executing files, and using TCP ports, from now on.

    If the kernel supports it, signals to processes outside are forbidden as well.

    Args:
      readable: files and directories; missing ones are ignored.
      writable: directories in which files may be created, written and removed.
      devices: files that may be read and written.
      programs: True: what may be read may be executed, and TCP ports may be used.

    Raises:
      OSError: there is no Landlock.
    """
    version = landlock_version()
    handled = _ALL_FILES.get(version, _IOCTL)
    network = 3 if version >= 4 and not programs else 0
    scoped, execute = (3 if version >= 6 else 0), (_EXECUTE if programs else 0)
    rules = _Ruleset(handled, network, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = _syscall(_LANDLOCK_CREATE, "landlock_create_ruleset", rules, size, 0)
    for paths, allowed in (
        (readable, READ_FILE | READ_DIR | execute),
        (writable, handled & ~_EXECUTE | execute),
        (devices, READ_FILE | _WRITE_FILE),
    ):
        for path in paths:
            try:
                file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            rights = allowed if os.path.isdir(path) else allowed & _OF_FILES
            _syscall(_LANDLOCK_ADD, f"landlock rule {path}", ruleset, 1, _PathRule(rights, file), 0)
            os.close(file)
    _syscall(_LANDLOCK_RESTRICT, "landlock_restrict_self", ruleset, 0)
    os.close(ruleset)
