"""The filter of system calls: calls that are not on the list of ``calls`` are rejected.

A call of another architecture (32-bit calls on x86) ends the process. Imports nothing of the
project but this package.
"""

from __future__ import annotations

import ctypes
import errno
import functools

from rlax_plugin.reward.sandbox import calls
from rlax_plugin.reward.sandbox.kernel import machine, set_seccomp

# Codes of instructions: load a word; jump if it is equal, at least, above, or has a bit; return.
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ABOVE, JUMP_SET, RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
ALLOW, KILL = 0x7FFF0000, 0x80000000
NOT_PERMITTED, NOT_THERE = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16  # what a filter can load

Step = tuple[int, int, int, int]
"""An instruction: its code, the number to skip if true and if false, and a value."""


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
    """True if the numbers of this machine's system calls are known."""
    return machine() in calls.ARCHITECTURES


def refuse_calls(*, programs: bool = False) -> None:
    """Installs the filter permanently for this process and all that it starts.

    Args:
      programs: True: it may execute programs, see ``calls.OF_PROGRAMS``.

    Raises:
      OSError: the kernel has no seccomp, or privileges could still be gained.
    """
    set_seccomp(filter_program(programs=programs))


@functools.cache
def filter_program(*, programs: bool) -> _Program:
    """Returns the filter, which is made once per process and inherited by forks."""
    filters = steps(machine(), programs=programs)
    array = (_Instruction * len(filters))(*filters)
    return _Program(len(filters), array)


def steps(architecture: str, *, programs: bool = False) -> list[Step]:
    """Returns the filter of an architecture."""
    allowed = {**calls.ALLOWED, **calls.OF_PROGRAMS} if programs else calls.ALLOWED
    sockets = calls.SOCKETS_OF_PROGRAMS if programs else ()
    column, audit = calls.ARCHITECTURES[architecture]
    found: list[Step] = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, AT_NUMBER),
    ]
    for first, last in _ranges(column, allowed):
        found += [(JUMP_AT_LEAST, 0, 2, first), (JUMP_ABOVE, 1, 0, last), (RETURN, 0, 0, ALLOW)]
    for name, (numbers, place, values) in calls.BY_ARGUMENT.items():
        values = (*values, *sockets) if name == "socket" else values
        found += [
            (JUMP_EQUAL, 0, 2 * len(values) + 2, numbers[column]),
            (LOAD, 0, 0, AT_ARGUMENTS + 8 * place),
        ]
        for value in values:
            found += [(JUMP_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
        found.append((RETURN, 0, 0, NOT_PERMITTED))
    found += [
        (JUMP_EQUAL, 0, 4, calls.CLONE[column]),
        (LOAD, 0, 0, AT_ARGUMENTS),
        (JUMP_SET, 1, 0, calls.CLONE_REFUSED),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, NOT_PERMITTED),
        (JUMP_AT_LEAST, 0, 1, calls.FIRST_OPTIONAL),
        (RETURN, 0, 0, NOT_THERE),
        (RETURN, 0, 0, NOT_PERMITTED),
    ]
    return found


def _ranges(column: int, allowed: calls.Numbers) -> list[tuple[int, int]]:
    """Returns the numbers that are always allowed, as the first and last of each range."""
    numbers = [one for both in allowed.values() if (one := both[column]) is not None]
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    return ranges
