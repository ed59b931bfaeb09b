"""A Python process that answers lines of JSON, seen from its parent.

The process's own side is ``inside``. Every wait has a deadline, and the process ends with its
parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from rlax_plugin.base.errors import ConfigError, DeadlineError, RlaxError
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.text.harmless import one_line

FROM_OUTSIDE = frozenset((signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Signals that no limit sends: a user ends the process, or a system short of memory does."""

_PIECE = 1 << 16  # bytes that are read or written at once, and that are read of a log
_LONGEST = 500  # characters of the last line of a log
_END_S = 5.0
_TELL_S = 1.0  # between two reports of the time that something has taken


class EndedError(Exception):
    """Raised when the process has ended and will send no more lines.

    Attributes:
      begun: the written part of its next line.
    """

    def __init__(self, begun: bytes):
        super().__init__("the process has ended")
        self.begun = begun


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process.

    Attributes:
      status: its exit status; negative: the signal that has ended it.
      said: the last line of its log, harmless; "" if the log is empty or not kept.
    """

    status: int
    said: str


def with_this_path() -> dict[str, str]:
    """Returns the environment variable that gives a process this one's import path."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


class AskedProcess:
    """A process ``python -m module``, started at once.

    Args:
      environment: variables beside those of this process.
      keeps_log: True: its output and errors go to a file, whose last line ``ending`` returns;
        False: to this process's standard error.
      leads_session: True: a Ctrl-C does not reach it, and its own child processes end with it.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        keeps_log: bool = False,
        leads_session: bool = False,
    ):
        # It is closed when the process ends.
        log = self._log = tempfile.TemporaryFile() if keeps_log else None  # noqa: SIM115
        process = self._process = subprocess.Popen(
            python_command("-m", module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env=os.environ | (environment or {}),
            start_new_session=leads_session,
        )
        assert process.stdin is not None and process.stdout is not None
        self._to, self._from = process.stdin.fileno(), process.stdout.fileno()
        for descriptor in (self._to, self._from):
            os.set_blocking(descriptor, False)
        self._unsent, self._rest = memoryview(b""), bytearray()
        self._close = weakref.finalize(self, _end, process, log, leads_session)

    def send(self, line: bytes) -> None:
        """Sends a line that ends with a newline; ``receive`` sends any part not yet read."""
        self._unsent = memoryview(bytes(self._unsent) + line)
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._write()

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._to, self._unsent[:_PIECE]) :]
        except BrokenPipeError:
            self._unsent = memoryview(b"")  # what it has answered is still there

    def receive(self, within_s: float, most_bytes: int = sys.maxsize) -> bytes:
        """Returns its next line, with the newline.

        Raises:
          TimeoutError: it took longer.
          OverflowError: the line is longer than ``most_bytes``.
          EndedError: there are no more.
        """
        until_s = time.monotonic() + within_s
        whole = b"\n" in self._rest
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            if self._unsent:
                selector.register(self._to, selectors.EVENT_WRITE)
            while not whole:
                ready = selector.select(max(0.0, until_s - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd == self._to:
                        self._write()
                        if not self._unsent:
                            selector.unregister(self._to)
                        continue
                    if not (data := os.read(self._from, _PIECE)):
                        raise EndedError(bytes(self._rest))
                    self._rest += data
                    whole = b"\n" in data
                    if len(self._rest) > most_bytes and not whole:
                        raise OverflowError
        end = self._rest.index(b"\n") + 1
        line, self._rest = bytes(self._rest[:end]), self._rest[end:]
        return line

    def ending(self, wait_s: float) -> Ending:
        """Ends it, unless it ends by itself within ``wait_s``, and returns its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        said = "" if self._log is None else _last_line(self._log)
        self.close()
        return Ending(self._process.returncode, said)

    def close(self) -> None:
        """Ends it; further calls do nothing."""
        self._close()


@dataclass(frozen=True, slots=True)
class Limit:
    """The time limit of ``answers_of``.

    Attributes:
      seconds: the limit.
      key: key or option that sets it.
      each: True if it holds for each activity; False: for all of them together.
    """

    seconds: float
    key: str
    each: bool = False


def answers_of(
    module: str,
    asked: Mapping[str, Any],
    what: str,
    limit: Limit,
    progress: Callable[[str, int], None],
    named: Callable[[str], str] = str,
) -> Iterator[dict[str, Any]]:
    """Starts a process that does its work by ``inside.answer_once``, and yields what it says.

    Args:
      asked: the line that it gets.
      what: its first activity, in words; ``{"next": name}`` of the process begins another.
      progress: called every second with the activity, and for how many seconds.
      named: the name that the process gives to an activity -> in words.

    Raises:
      ConfigError: the process raised one.
      DeadlineError: it took longer; the process is then ended.
      RlaxError: the process failed, for example because memory ran out.
    """
    process = AskedProcess(
        module,
        environment=with_this_path(),
        keeps_log=True,
        leads_session=True,  # a Ctrl-C is for this process to handle
    )
    began_s = since_s = time.monotonic()
    try:
        process.send(json.dumps(asked, default=str).encode() + b"\n")
        while True:
            now_s = time.monotonic()
            left_s = limit.seconds - (now_s - (since_s if limit.each else began_s))
            if left_s <= 0:
                raise DeadlineError(what, limit.seconds, limit.key)
            progress(f"{what}, seconds:", int(now_s - since_s))
            try:
                line = json.loads(process.receive(min(_TELL_S, left_s)))
            except TimeoutError:
                continue
            if "next" in line:
                what, since_s = named(one_line(str(line["next"]), 64)), time.monotonic()
            elif "reason" in line:
                raise ConfigError(line["key"], line["value"], line["reason"])
            elif "error" in line:
                raise RlaxError(f"{what} failed: {line['error']}")
            elif "done" in line:
                return
            else:
                yield line
    except EndedError:  # its log says why
        ending = process.ending(_END_S)
        raise RlaxError(
            f"{what}: the process ended with status {ending.status}: "
            f"{ending.said or 'it said nothing'}"
        ) from None
    finally:
        process.close()


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _PIECE))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return one_line(lines[-1], _LONGEST) if lines else ""


def _end(process: subprocess.Popen[bytes], log: IO[bytes] | None, leads_session: bool) -> None:
    if leads_session:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for file in (process.stdin, process.stdout, log):
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()
