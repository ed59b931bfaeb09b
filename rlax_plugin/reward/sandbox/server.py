"""The process inside the sandbox, which forks a process per piece of code and cleans up after it.

Started by ``Sandbox`` as a bare Python. The first process enters the namespaces and forks the
server, which in a pid namespace is its process 1: it can kill only tested code, and when it
ends, everything in the namespace ends. It sees neither the code nor its output, which pass
through files that it is given for each piece. Imports nothing of the project but this package.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
from contextlib import suppress
from typing import Any, NoReturn

from rlax_plugin.reward.sandbox import kernel, view
from rlax_plugin.reward.sandbox.code_limits import Limits
from rlax_plugin.reward.sandbox.entering import enter
from rlax_plugin.reward.sandbox.piece import Held, prepare, run

_CONTROL, _FILES = 3, 5
_LONGEST = 1 << 18  # bytes of a message
LOOPBACK = "127.0.0.1"
_BACKLOG = 64  # connections that wait to be accepted
_WARM = (
    "ast bisect collections copy datetime decimal fractions functools heapq io itertools json math "
    "operator random re statistics string traceback typing"
)


def main() -> None:
    """Runs ``python -c ... ROOT CONTROL``, where CONTROL is the number of a socket."""
    # Files 0 to 3 are taken from now on: what comes for a piece of code has other numbers.
    if (number := int(sys.argv[2])) != _CONTROL:
        os.dup2(number, _CONTROL)
        os.close(number)
    control = socket.socket(fileno=_CONTROL)
    os.set_inheritable(_CONTROL, False)
    settings = json.loads(control.recv(_LONGEST))
    layers: list[str] = settings["layers"]
    limits, see = Limits(**settings["limits"]), settings["see"]
    places = tuple(settings["places"])
    for name in _WARM.split():
        __import__(name)
    try:
        os.chdir("/")
        # Of processes outside, where what a piece leaves is not in a namespace that can be emptied.
        proc = -1 if "pid namespace" in layers else os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        seen = view.Seen(tuple(see), limits.space_bytes, places) if see is not None else None
        uid = settings["uid"]
        enter(layers, lambda: _ask(control, {"unshared": os.getpid()}), seen, uid)
        if pid := os.fork():
            _wait_for(pid, control)
        _serve(control, Held(layers, limits, uid, proc, seen), settings["prelude"])
    except OSError as error:
        _say(control, {"failed": str(error)})
        os._exit(1)


def _wait_for(pid: int, control: socket.socket) -> None:
    """Stays outside of the pid namespace, so that the starting process can wait for its end."""
    _say(control, {"server": pid})
    control.close()
    os.waitpid(pid, 0)
    os._exit(0)


def _say(control: socket.socket, message: dict[str, Any]) -> None:
    control.send(json.dumps(message).encode())


def _ask(control: socket.socket, message: dict[str, Any]) -> None:
    _say(control, message)
    if not control.recv(1 << 16):
        os._exit(0)  # the process that asked is gone


def _serve(control: socket.socket, held: Held, prelude: str) -> None:
    kernel.end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what runs inside might send it
    os.environ.clear()
    if "pid namespace" not in held.layers:
        kernel.adopt_orphans()
    if prelude:
        module = sys.modules["prelude"] = types.ModuleType("prelude")
        exec(compile(prelude, "prelude.py", "exec", dont_inherit=True), module.__dict__)
    prepare(held)
    kernel.hide_memory()
    gc.collect()
    gc.freeze()
    listener = _listener(held)
    # Where nothing else can be had, the files of programs stay in a directory of this machine.
    kept = None if held.seen is None or "mount namespace" in held.layers else _temporary(held)
    ready = json.dumps({"ready": True, "kept": kept}).encode()
    socket.send_fds(control, [ready], listener)
    for file in listener:
        os.close(file)
    while True:
        message, files, _, _ = socket.recv_fds(control, 1 << 16, _FILES)
        if not message:
            _leave(kept)
        asked = json.loads(message)
        if "job" in asked:
            limit_s = asked.get("wall_s", held.limits.wall_s)
            _say(control, {"job": asked["job"], **_piece(control, files, held, kept, limit_s)})


def _listener(held: Held) -> list[int]:
    """Returns a socket that listens in the network namespace of programs, if they have one."""
    if held.seen is None or "network namespace" not in held.layers:
        return []
    return [socket.create_server((LOOPBACK, 0), backlog=_BACKLOG).detach()]


def _leave(kept: str | None) -> NoReturn:
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)
    os._exit(0)


def _piece(
    control: socket.socket, files: list[int], held: Held, kept: str | None, wall_s: float
) -> dict[str, Any]:
    place = kept or (view.WORK if "mount namespace" in held.layers else _temporary(held))
    read, write = os.pipe()
    if not (pid := os.fork()):
        run(files, write, held, place)
    os.close(write)
    for file in files:
        os.close(file)
    try:
        return _watched(control, pid, read, wall_s)
    except _HolderGoneError:
        _end_all(held)
        _leave(None if place == view.WORK else place)
    finally:
        os.close(read)
        _end_all(held)
        if place not in (view.WORK, kept):
            shutil.rmtree(place, ignore_errors=True)


def _temporary(held: Held) -> str:
    """Returns a directory of this machine, for use without a mount namespace."""
    place = tempfile.mkdtemp(prefix="rlax-sandbox-")
    if os.geteuid() == 0 and "unused uid" in held.layers:
        os.chown(place, held.uid, held.uid)
    return place


class _HolderGoneError(Exception):
    """The process that holds the sandbox has ended."""


def _watched(control: socket.socket, pid: int, ready: int, wall_s: float) -> dict[str, Any]:
    """Waits until the piece has ended, its time is over, or it is no longer wanted."""
    end = time.monotonic() + wall_s
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for file in (ready, control.fileno(), ended):
        poll.register(file, select.POLLIN)
    began, refused, why = False, False, ""
    try:
        while True:
            left = end - time.monotonic()
            found = dict(poll.poll(max(0.0, left) * 1000))
            if ready in found:
                said = os.read(ready, 1024)
                if said.strip(b"\0\1"):
                    return {"failed": said.decode(errors="replace")}
                began, refused = began or bool(said), said.endswith(b"\1")
                poll.unregister(ready)
            elif ended in found:
                break
            elif control.fileno() in found:
                if not control.recv(1 << 16):
                    raise _HolderGoneError
                why = "stopped"
                break
            elif left <= 0:
                why = "time"
                break
    finally:
        os.close(ended)
    if why:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if not began and not why:
        return {"failed": f"ended with {code} before it began"}
    refused = refused or os.read(ready, 1) == b"\1"
    return {"code": code, "why": why, "began": not refused}


def _end_all(held: Held) -> None:
    """Ends everything that the piece has started."""
    while True:
        if "pid namespace" in held.layers and os.getpid() == 1:
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in _descendants(held.proc):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _descendants(proc: int) -> list[int]:
    """Returns the processes below this one, which adopts orphans, without a pid namespace."""
    parents: dict[int, int] = {}
    for name in filter(str.isdecimal, os.listdir(proc)):
        with suppress(OSError), open(os.open(f"{name}/stat", os.O_RDONLY, dir_fd=proc)) as file:
            parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return list(found - {os.getpid()})
