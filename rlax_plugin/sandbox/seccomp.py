"""The filter of system calls: what tested code has no use for, and what an attack needs.

Refused calls fail with EPERM, so that Python raises a PermissionError. A call of another
architecture (32-bit calls on x86) ends the process. What is refused: looking into other processes,
mounts and namespaces, kernel modules and keys, other programs (execve), sockets other than local
ones, memory that no limit counts (memfd, System V IPC), and changes to other processes' limits and
priorities. Imports nothing of the project but system calls.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import socket

from rlax_plugin.sandbox.kernel import machine, set_seccomp

# Name: number on x86_64, number on aarch64; None: there is no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "execve": (59, 221),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, None),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semget": (64, 190),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "uselib": (134, None),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_PRLIMIT, _SOCKET = (302, 261), (41, 198)
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}
_X32 = 0x40000000  # calls of the x32 interface on x86_64 have this bit
_NEW_NAMESPACES = 0x7E020080  # the flags CLONE_NEW*

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("if_true", ctypes.c_uint8),
        ("if_false", ctypes.c_uint8),
        ("value", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction)))


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return machine() in _AUDIT


def refuse_calls() -> None:
    """Installs the filter for this process and all that it starts, for good.

    Raises:
      OSError: the kernel has no seccomp, or privileges could still be gained.
    """
    set_seccomp(filter_program())


@functools.cache
def filter_program() -> _Program:
    """The filter, which is made once per process and inherited by forks."""
    column = _COLUMN[machine()]
    filters: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine()]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _AT_NUMBER),
    ]
    if machine() == "x86_64":
        filters += [(_JUMP_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _EPERM)]
    for numbers in _REFUSED.values():
        if (number := numbers[column]) is not None:
            filters += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    # Its flags are in memory, which a filter cannot read: the C library then uses clone.
    filters += [(_JUMP_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ENOSYS)]
    for call, test, refused_if in (
        (_CLONE[column], (_JUMP_SET, _NEW_NAMESPACES), True),
        (_PRLIMIT[column], (_JUMP_EQUAL, 0), False),  # the limits of this very process
        (_SOCKET[column], (_JUMP_EQUAL, int(socket.AF_UNIX)), False),
    ):
        code, value = test
        filters += [
            (_JUMP_EQUAL, 0, 4, call),
            (_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
            (code, *((0, 1) if refused_if else (1, 0)), value),
            (_RETURN, 0, 0, _EPERM),
            (_LOAD, 0, 0, _AT_NUMBER),
        ]
    filters.append((_RETURN, 0, 0, _ALLOW))
    array = (_Instruction * len(filters))(*filters)
    return _Program(len(filters), array)
