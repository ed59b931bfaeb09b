"""Inside the processes of a ``LimitedFunction``: a keeper, and a worker that it forks.

Started as ``python -m rlax_plugin.processes.limited_process FUNCTION CPU_S MEMORY_BYTES``. The keeper
imports the function's module once, forks the worker, and waits. The worker calls the function with
what comes on stdin, and answers on stdout. When a limit has killed it, the keeper says so on its
behalf and forks another one, which takes milliseconds, as everything is imported.
"""

from __future__ import annotations

import json
import os
import pkgutil
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_AGAIN = 75  # exit code of a worker that has answered, and wants to be replaced


class _Lines:
    """Lines on a descriptor, without reading more than was sent."""

    def __init__(self, descriptor: int):
        self._descriptor, self._rest = descriptor, b""

    def next(self) -> bytes:
        """The next line; empty at the end."""
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            data = os.read(self._descriptor, 1 << 16)
            if not data:
                return b""
            parts.append(data)
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


def _say(descriptor: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _work(function: Callable[..., Any], lines: _Lines, answers: int, cpu_s: float) -> None:
    """Answers until there are no more questions."""
    # Its default action ends the process wherever it is, in C code as well.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    while line := lines.next():
        arguments = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            said = {"value": function(*arguments)}
            json.dumps(said)
        except MemoryError:
            # What is left of it, such as a cache, would be missing in the next call.
            _say(answers, {"over": "memory"})
            os._exit(_AGAIN)
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is awaited
            said = {"error": _said(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(answers, said)


def _said(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception as failed:  # noqa: BLE001  such as the text of a KeyError of a huge number
        return f"{kind}, which cannot be shown: {type(failed).__name__}"


def _limit_memory(more_bytes: int) -> None:
    """Allows so much more than there is; does nothing where the system does not tell."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more_bytes
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    name, cpu_s, memory_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that asks
    answers, lines = os.dup(1), _Lines(0)
    os.dup2(2, 1)  # what the function prints is no answer
    sys.path[:] = json.loads(lines.next())
    function = pkgutil.resolve_name(name)
    _say(answers, {"ready": True})
    while True:
        pid = os.fork()
        if not pid:
            try:
                _limit_memory(memory_bytes)
                _work(function, lines, answers, cpu_s)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status) != _AGAIN:
                return
            continue
        with suppress(BrokenPipeError):  # nobody is left, and the next worker will see that
            _say(answers, {"signal": os.WTERMSIG(status)})


if __name__ == "__main__":
    main()
