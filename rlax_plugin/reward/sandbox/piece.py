"""One piece of code in a fork of the server, which gives up all rights and then runs the code.

Imports nothing of the project but this package.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from rlax_plugin.reward.sandbox import kernel, seccomp, view
from rlax_plugin.reward.sandbox.code_limits import Limits

CHANNEL = 3
"""Number of the file on which a piece of code may talk with the process that started it."""

_OTHERS = 2  # where the server and its parent have the same uid, they are counted as well
_RESERVED = 4 << 30  # bytes of address space that are not memory
_LONGEST = 1 << 26  # bytes of a program


@dataclass(frozen=True, slots=True)
class Held:
    """The containment of a piece of code.

    Attributes:
      layers: names of the required layers; if one fails, the piece ends before it begins.
      limits: limits of the code.
      uid: uid of tested code if the server is root.
      proc: an open directory of processes; -1 if there is a pid namespace.
      seen: what programs see; None: it is Python code, which may execute none.
    """

    layers: Collection[str]
    limits: Limits
    uid: int
    proc: int = -1
    seen: view.Seen | None = None


def prepare(held: Held) -> None:
    """Prepares in the server, once, what its forks inherit."""
    view.readable(held.seen)
    view.devices()
    if "capability drop" in held.layers:
        kernel.forbid_capabilities()
    if "seccomp" in held.layers:
        seccomp.filter_program(programs=held.seen is not None)
    if "landlock" in held.layers:
        kernel.landlock_version()


def run(files: list[int], ready: int, held: Held, place: str) -> NoReturn:
    """Runs a piece of code in this process, which was forked for it.

    Args:
      files: the program, stdin, stdout, stderr, and perhaps the channel; all above ``CHANNEL``.
        Where programs may be executed, JSON is in place of the program: ``source``, or ``command``
        with its ``environment``.
      ready: gets one byte when only the code itself is left to run, or the error that prevented it;
        a second byte, 1, if a program cannot be executed.
      held: the containment.
      place: its directory, in which it may write.
    """
    try:
        program = _alone(files, ready, held, place)
    except BaseException as error:  # noqa: BLE001  whatever it is, the server must know
        os.write(ready, f"{type(error).__name__}: {error}".encode()[:1000])
        os._exit(1)
    os.write(ready, b"\0")
    if held.seen is not None:
        asked = json.loads(program)
        if "command" in asked:
            _execute(asked["command"], asked["environment"], place, ready)
        program = asked["source"].encode()
    os.close(ready)
    os._exit(_run(program))


def _alone(files: list[int], ready: int, held: Held, place: str) -> bytes:
    # In this order: each step needs what a later one takes away.
    layers = held.layers
    if "mount namespace" in layers and held.seen is None:
        os.unshare(os.CLONE_NEWNS)
        view.new_work_place(held.limits.space_bytes)
    os.setsid()
    _put_files(files[1:], keep=(files[0], ready))
    with open(files[0], "rb") as file:
        program = file.read(_LONGEST)
    os.chdir(place)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    changes = "unused uid" in layers and os.geteuid() == 0
    if changes:
        os.setgroups([])
        os.setresgid(held.uid, held.uid, held.uid)
        os.setresuid(held.uid, held.uid, held.uid)
    if "capability drop" in layers:
        kernel.drop_capabilities()
    kernel.show_memory()
    kernel.end_with_parent(signal.SIGKILL)
    others, programs = 0 if changes else _OTHERS, held.seen is not None
    _limit(held.limits, processes="process limit" in layers, others=others, programs=programs)
    if "no new privileges" in layers:
        kernel.no_new_privileges()
    if "landlock" in layers:
        # Its root has nothing else: programs list it, and look for files of their own.
        whole = programs and "mount namespace" in layers
        readable = ("/",) if whole else view.readable(held.seen)
        kernel.restrict_files(readable, (place,), devices=view.devices(), programs=programs)
    if "seccomp" in layers:
        seccomp.refuse_calls(programs=programs)
    return program


def _put_files(files: list[int], keep: tuple[int, int]) -> None:
    """Makes the files 0, 1, 2, and 3 if there is a channel, and closes all others."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    low = len(files)
    for number in sorted(keep):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, 1 << 16)


def _limit(limits: Limits, *, processes: bool, others: int, programs: bool) -> None:
    wanted = {
        # Memory that can be written; a thread of the C library reserves much more than it uses.
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_AS: limits.memory_bytes + _RESERVED,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if programs:  # some reserve any amount of it
        del wanted[resource.RLIMIT_AS]
    if processes:
        wanted[resource.RLIMIT_NPROC] = limits.processes + others
    for name, value in wanted.items():
        value = _allowed(name, value)
        resource.setrlimit(name, (value, value))
    cpu_s = [_allowed(resource.RLIMIT_CPU, limits.cpu_s + more) for more in (0, 1)]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s[0], cpu_s[1]))  # SIGXCPU, then SIGKILL


def _allowed(name: int, value: int) -> int:
    _, hard = resource.getrlimit(name)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _execute(
    command: list[str], environment: Mapping[str, str], place: str, ready: int
) -> NoReturn:
    """Replaces this process by a program; one that cannot be had ends as in a shell."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    own = {"HOME": place, "TMPDIR": place, "LANG": "C.UTF-8", **environment}
    try:
        os.execvpe(command[0], command, own)
    except (OSError, ValueError) as error:  # the second: a NUL in an argument
        os.write(ready, b"\1")  # otherwise it is closed by now
        os.write(2, f"{command[0]}: {error}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _run(program: bytes) -> int:
    """Runs a program as ``__main__`` and returns its exit code."""
    sys.stdin = sys.__stdin__ = _text(0, "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = _text(1, "w", "backslashreplace")
    sys.stderr = sys.__stderr__ = _text(2, "w", "backslashreplace")
    sys.argv[:], sys.path[:] = ["program.py"], [path for path in sys.path if path != _own_path()]
    module = types.ModuleType("__main__")
    # As in every program; the module site, which defines them, is not loaded here.
    module.__dict__.update(exit=_leave, quit=_leave)
    sys.modules["__main__"] = module
    code = 0
    try:
        exec(compile(program, "program.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        code = _exit_code(end.code)
    except BaseException as error:  # noqa: BLE001  it is the code's, and belongs on its stderr
        frames = error.__traceback__
        traceback.print_exception(error.with_traceback(frames and frames.tb_next))
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]  waits for its threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  such as a full stdout
        code = code or 1
    return code


def _text(file: int, mode: str, errors: str) -> IO[Any]:
    # Stderr is kept even if the code ends without flushing it.
    buffering = 1 if file == 2 else -1
    return open(file, mode, buffering, encoding="utf-8", errors=errors, closefd=False)


def _leave(code: object = None) -> NoReturn:
    raise SystemExit(code)


def _own_path() -> str:
    return os.path.dirname(
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    )


def _exit_code(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return int(value) & 0xFF
    print(value, file=sys.stderr)
    return 1
