"""A function that runs in a process of its own, with limits on its CPU time and its memory.

For rewards whose libraries a text can make compute without end. An exception or a signal handler
would not do: Python runs neither while C code computes ``10**10**10``, and libraries swallow them.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.text.harmless import one_line

_MEMORY_BYTES = 1 << 30
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


_TRIES = 3  # of a call whose process is ended from outside, or was not a new one


class OverLimitError(RlaxError):
    """The function took more than it may, or crashed: its arguments are to blame."""


class LimitedFunction:
    """Calls a function in another process, one call at a time; any thread may call.

    The limit is on CPU time, so that the same arguments have the same result however busy the
    machine is. The system enforces it, also in C code and without the function's help. The process
    stays for the next call; after a call that was over a limit, it takes milliseconds to replace.

    Args:
      function: ``module:name``. Arguments and result are what JSON can hold.
      cpu_s: seconds of CPU time of one call.
      wait_s: seconds that a call may take in all, waiting for the processor included.
      wait_key: the config key of ``wait_s``, for messages.
      startup_s: seconds in which the function's module must be imported.
      memory_bytes: that calls may need, beside what the module has.
    """

    def __init__(
        self,
        function: str,
        *,
        cpu_s: float,
        wait_s: float,
        wait_key: str = "rlax.deadlines.reward_s",
        startup_s: float = 180.0,
        memory_bytes: int = _MEMORY_BYTES,
    ):
        self._function, self._cpu_s, self._memory_bytes = function, cpu_s, memory_bytes
        self._wait_s, self._wait_key, self._startup_s = wait_s, wait_key, startup_s
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def start(self) -> None:
        """Begins to start the process, which the first call waits for."""
        if self._process is None:
            command = [self._function, repr(self._cpu_s), str(self._memory_bytes)]
            self._process = _Process(command)

    def __call__(self, *arguments: Any) -> Any:
        """The function's result.

        Raises:
          OverLimitError: it took too much CPU time or memory, or crashed.
          DeadlineError: the process did not start or answer in time.
          RlaxError: the function raised an exception, or the process was ended from outside, as by
            a system that is short of memory, in each of several tries.
        """
        with self._lock:
            for left in reversed(range(_TRIES)):
                try:
                    return self._called(arguments)
                except _Lost:
                    self.close()
                    if not left:
                        raise RlaxError(f"the process of {self._function} has ended") from None
                except _Again as again:
                    if not left:
                        raise RlaxError(str(again)) from None
                except BaseException as error:
                    # An answer that comes later must not be taken for that of the next call.
                    if not isinstance(error, Exception) or isinstance(error, DeadlineError):
                        self.close()
                    raise
            raise AssertionError("the last try returns or raises")

    def _called(self, arguments: Sequence[Any]) -> Any:
        self.start()
        process = self._process
        assert process is not None
        if not process.ready:
            what = f"importing {self._function}"
            late = DeadlineError(what, self._startup_s, "rlax.deadlines.startup_s")
            process.ready = bool(process.line(self._startup_s, late))
        process.send(arguments)
        late = DeadlineError(self._function, self._wait_s, self._wait_key)
        said = process.line(self._wait_s, late)
        fresh, process.fresh = process.fresh, "value" not in said and "error" not in said
        if "value" in said:
            return said["value"]
        if "error" in said:
            raise RlaxError(one_line(said["error"]))
        number = said.get("signal")
        if number in _FROM_OUTSIDE:
            raise _Again(f"the process of {self._function} was ended from outside")
        if number == signal.SIGPROF:
            raise OverLimitError(f"{self._function} took more than {self._cpu_s:g} s of CPU time")
        over = (
            f"{self._function} crashed with {signal.Signals(number).name}"
            if number
            else (f"{self._function} needed more than {self._memory_bytes} bytes")
        )
        if not fresh:  # earlier calls may have left too little memory
            raise _Again(over)
        raise OverLimitError(over)

    def close(self) -> None:
        """Ends the process; a later call starts another one."""
        if self._process is not None:
            self._process.close()
            self._process = None


class _Lost(Exception):
    """The process has ended."""


class _Again(Exception):
    """The arguments may not be to blame: the call is tried again, by a new worker."""


class _Process:
    """The keeper, see ``limited_process``, and lines to and from its worker.

    Attributes:
      ready: whether it has said that it is.
      fresh: whether its worker has not been called yet.
    """

    def __init__(self, command: Sequence[str]):
        process = subprocess.Popen(
            [sys.executable, "-m", "rlax_plugin.processes.limited_process", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        self.ready, self.fresh = False, True
        self._rest = b""
        self._close = weakref.finalize(self, _end, process)
        self.send([entry for entry in sys.path if entry] + [os.getcwd()])

    def send(self, message: Sequence[Any]) -> None:
        """Sends a line; it reads nothing else meanwhile, so that a long one does not block.

        Raises:
          _Lost: it is read no more.
        """
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except OSError:
            raise _Lost from None

    def line(self, wait_s: float, late: DeadlineError) -> Any:
        """The next line, as JSON.

        Raises:
          DeadlineError: ``late``.
          _Lost: there is none any more.
        """
        end_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as ready:
            ready.register(self._from, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not ready.select(max(0.0, end_s - time.monotonic())):
                    raise late
                data = os.read(self._from, 1 << 16)
                if not data:
                    raise _Lost
                self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        self._close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the keeper; its worker reads the end of stdin, or meets its limit of CPU time."""
    process.kill()
    for one in (process.stdin, process.stdout):
        if one is not None:
            one.close()
    process.wait()
