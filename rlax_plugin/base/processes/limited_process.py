"""The processes of a ``LimitedFunction``: a parent, and a worker that it forks.

Started as ``python -m rlax_plugin.base.processes.limited_process FUNCTION CPU_S MEMORY_BYTES``. The
parent imports the function's module once, forks the worker, and waits. The worker calls the
function with the arguments of each line, and answers. When a limit has killed it, the parent says
so in its place and forks another one, which takes milliseconds, as everything is imported.
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
from typing import Any

from rlax_plugin.base.processes.inside import Lines, memory_with

_AGAIN = 75  # exit code of a worker that has answered, and wants to be replaced


def _work(function: Callable[..., Any], lines: Lines, cpu_s: float) -> None:
    """Answers lines until the input ends."""
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
            lines.say({"over": "memory"})
            os._exit(_AGAIN)
        except BaseException as error:  # noqa: BLE001  it is raised where the answer is awaited
            said = {"error": _said(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines.say(said)


def _said(error: BaseException) -> str:
    kind = type(error).__name__
    try:
        return f"{kind}: {error}"
    except Exception as failed:  # noqa: BLE001  such as the text of a KeyError of a huge number
        return f"{kind}, which cannot be shown: {type(failed).__name__}"


def _limit_memory(more_bytes: int) -> None:
    """Limits memory to the present use and ``more_bytes``; does nothing if the use is unknown."""
    with suppress(OSError, ValueError):
        most = memory_with(more_bytes)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or most < hard:
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> None:
    name, cpu_s, memory_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that asks
    lines = Lines()  # what the function prints is no answer
    sys.path[:] = json.loads(lines.next())
    function = pkgutil.resolve_name(name)
    lines.say({"ready": True})
    while True:
        pid = os.fork()
        if not pid:
            try:
                _limit_memory(memory_bytes)
                _work(function, lines, cpu_s)
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status) != _AGAIN:
                return
            continue
        with suppress(BrokenPipeError):  # nobody is left, and the next worker will see that
            lines.say({"signal": os.WTERMSIG(status)})


if __name__ == "__main__":
    main()
