"""Runs a function in a separate process, with limits on its CPU time and its memory.

It is for rewards in whose libraries a text can cause endless computations. An exception or a signal
handler would not help: Python runs neither while C code computes ``10**10**10``, and libraries
swallow them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import DeadlineError, RlaxError
from rlax_plugin.base.processes.asked import FROM_OUTSIDE, AskedProcess, EndedError
from rlax_plugin.base.text.harmless import one_line

_MEMORY_BYTES = 1 << 30
_TRIES = 3  # of a call whose process is ended from outside, or was not a new one


class OverLimitError(RlaxError):
    """The function exceeded a limit or crashed, and its arguments are to blame.

    Attributes:
      ending: ``over_time``, ``over_memory`` or ``crashed``. A reward whose arguments are the answer
        returns ``Score(0.0, ending=error.ending)``.
    """

    def __init__(self, text: str, ending: Ending):
        super().__init__(text)
        self.ending = ending


class KilledError(RlaxError):
    """The process of the function was ended from outside, in each of several tries."""

    ending = Ending.PROCESS_ENDED


class LimitedFunction:
    """Calls a function in another process, one call at a time; any thread may call.

    The limit is on CPU time, so that the same arguments have the same result however busy the
    machine is. The system enforces it, also in C code and without the function's help. The process
    stays for the next call; after a call that exceeded a limit, replacing it takes milliseconds.

    Args:
      function: ``module:name``. Arguments and result must be JSON values.
      cpu_s: seconds of CPU time of one call.
      wait_s: seconds that a call may take in all, including the wait for the processor.
      wait_key: the config key of ``wait_s``, for messages.
      startup_s: seconds in which the function's module must be imported.
      memory_bytes: memory that calls may need in addition to the module's.
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
        self._process: AskedProcess | None = None
        self._ready = False  # whether the process has said that it is
        self._fresh = True  # whether its worker has not been called yet

    def start(self) -> None:
        """Starts the process without waiting for it; the first call waits."""
        if self._process is None:
            self._process = AskedProcess(
                "rlax_plugin.base.processes.limited_process",
                self._function,
                repr(self._cpu_s),
                str(self._memory_bytes),
            )
            self._ready, self._fresh = False, True
            self._process.send(_line([entry for entry in sys.path if entry]))

    def __call__(self, *arguments: Any) -> Any:
        """Returns the function's result.

        Raises:
          OverLimitError: it took too much CPU time or memory, or crashed.
          DeadlineError: the process did not start or answer in time.
          KilledError: the process was ended from outside, as by a system that is short of memory,
            in each of several tries.
          RlaxError: the function raised an exception.
        """
        with self._lock:
            for left in reversed(range(_TRIES)):
                try:
                    return self._called(arguments)
                except EndedError:
                    self.close()
                    if not left:
                        raise KilledError(f"the process of {self._function} has ended") from None
                except _Again as again:
                    if not left:
                        raise KilledError(str(again)) from None
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
        if not self._ready:
            what = f"importing {self._function}"
            late = DeadlineError(what, self._startup_s, "rlax.deadlines.startup_s")
            self._ready = bool(_answer(process, self._startup_s, late))
        process.send(_line(arguments))
        late = DeadlineError(self._function, self._wait_s, self._wait_key)
        said = _answer(process, self._wait_s, late)
        fresh, self._fresh = self._fresh, "value" not in said and "error" not in said
        if "value" in said:
            return said["value"]
        if "error" in said:
            raise RlaxError(one_line(said["error"]))
        number = said.get("signal")
        if number in FROM_OUTSIDE:
            raise _Again(f"the process of {self._function} was ended from outside")
        if number == signal.SIGPROF:
            reason = f"{self._function} took more than {self._cpu_s:g} s of CPU time"
            raise OverLimitError(reason, Ending.OVER_TIME)
        over = (
            f"{self._function} crashed with {signal.Signals(number).name}"
            if number
            else (f"{self._function} needed more than {self._memory_bytes} bytes")
        )
        if not fresh:  # earlier calls may have left too little memory
            raise _Again(over)
        raise OverLimitError(over, Ending.CRASHED if number else Ending.OVER_MEMORY)

    def close(self) -> None:
        """Ends the process; a later call starts another one."""
        if self._process is not None:
            self._process.close()
            self._process = None


class _Again(Exception):
    """Makes a new worker try the call again, as its arguments may not be to blame."""


def _line(message: Sequence[Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _answer(process: AskedProcess, within_s: float, late: DeadlineError) -> dict[str, Any]:
    """Returns the next answer of the parent process or its worker, see ``limited_process``.

    Raises:
      DeadlineError: ``late``.
      EndedError: there are no more answers.
    """
    try:
        return json.loads(process.receive(within_s))
    except TimeoutError:
        raise late from None
