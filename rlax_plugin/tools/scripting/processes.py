"""The processes behind a handle: the run that was started, one that runs elsewhere, commands."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from pathlib import Path
from typing import BinaryIO, Protocol

import psutil

from rlax_plugin.base.errors import CommandError, ConfigError, RlaxError
from rlax_plugin.base.processes.python import python_command

_INTERRUPTED = 130
# A notebook's kernel sets the first one. Colours would be codes in logs and in messages of errors.
_COLOURING = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
_TAIL = 65_536  # bytes of a log that are read again


class RunProcess(Protocol):
    """The process that runs a run."""

    def ended(self, timeout_s: float) -> bool:
        """Waits for the end at most that long; returns True if the process has ended."""
        ...

    def interrupt(self) -> None:
        """Sends what Ctrl-C sends; does nothing if the process has ended."""
        ...


class Started:
    """A process of ``rlax train`` that this process has started.

    Args:
      config: the config.
      log: file to which its output is appended.

    Attributes:
      status: its exit status; None while it runs.
    """

    def __init__(self, config: Path, log: Path):
        self._log = log.absolute()  # the working directory may change
        with _appended(log) as out:
            self._begin = out.tell()
            self._process = subprocess.Popen(
                python_command("-m", "rlax_plugin.tools.scripting.child", str(config)),
                stdin=subprocess.PIPE,  # closes when this process ends, see child.py
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_plain_environment(),
                start_new_session=True,  # a Ctrl-C is for this process, which then decides
            )
        # A process that this one forks, such as a worker of a pool, may outlive it.
        os.register_at_fork(after_in_child=self._let_go)
        self._starter, self._interrupted = os.getpid(), False
        self.status: int | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._wait, name="rlax-run", daemon=True).start()

    def _let_go(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _wait(self) -> None:
        self.status = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._ended.set()

    def _check_process(self) -> None:
        """A forked process has no thread that waits for the run, and the run is not its child."""
        if os.getpid() != self._starter:
            raise RlaxError(
                f"the run was started by process {self._starter}, from which this one was forked: "
                "in this process use rlax_plugin.open"
            )

    def ended(self, timeout_s: float) -> bool:
        self._check_process()
        return self._ended.wait(timeout_s)

    def interrupt(self) -> None:
        self._check_process()
        if not self._ended.is_set():
            self._interrupted = True
            self._process.send_signal(signal.SIGINT)

    @property
    def stopped(self) -> bool:
        """True if it was interrupted, perhaps while Python itself was still starting."""
        if self.status == 1:
            return self._interrupted and "\nKeyboardInterrupt\n" in self._output()
        return self.status in (_INTERRUPTED, -signal.SIGINT)

    def last_line(self) -> str:
        """Returns the last line of its output so far."""
        lines = [line for line in self._output().splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def error(self) -> CommandError:
        """Returns the error of a process that has failed, with its own message."""
        status = self.status or 0
        return CommandError("train", status, failure(self._output(), status, str(self._log)))

    def _output(self) -> str:
        try:
            with self._log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._begin, end - _TAIL))
                return file.read().decode(errors="replace")
        except OSError:  # it was removed, which is no reason to stop waiting for the run
            return ""


def _appended(log: Path) -> BinaryIO:
    try:
        return log.open("ab")
    except OSError as error:
        reason = f"{log} cannot be written: {error.strerror}"
        raise ConfigError("folder", str(log.parent), reason) from None


class Elsewhere:
    """A process of ``rlax train`` that another process has started."""

    def __init__(self, process: psutil.Process):
        self._process = process

    def ended(self, timeout_s: float) -> bool:
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except ProcessLookupError:
            return True
        try:
            # The number may have been given to another process before the line above.
            if not self._process.is_running():
                return True
            return bool(select.select([descriptor], [], [], timeout_s)[0])
        finally:
            os.close(descriptor)

    def interrupt(self) -> None:
        try:
            self._process.send_signal(signal.SIGINT)  # psutil compares the start of the process
        except psutil.NoSuchProcess:
            return


def command(name: str, *arguments: str) -> str:
    """Runs a command of ``rlax`` to its end, for which the command has deadlines of its own.

    Returns:
      Its standard output.

    Raises:
      CommandError: it failed, with its own message.
    """
    line = python_command("-m", "rlax_plugin", name, *arguments)
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_plain_environment()
    )
    if done.returncode:
        reason = failure(done.stderr, done.returncode, "")
        raise CommandError(name, done.returncode, reason)
    return done.stdout


def _plain_environment() -> dict[str, str]:
    """Returns the environment of a child whose output is a file or a pipe."""
    return {key: value for key, value in os.environ.items() if key not in _COLOURING}


def failure(output: str, status: int, log: str) -> str:
    """Returns the error message in a command's output, or its last line if it has printed none.

    Args:
      status: its exit status, negative if a signal ended it.
      log: the file with its output, for messages; empty: none.
    """
    _, found, message = f"\n{output}".rpartition("\nerror: ")
    if found:
        return message.strip()
    seen = f"; its output is in {log}" if log else ""
    if status < 0:
        return f"the signal {signal.Signals(-status).name} ended it{seen}"
    lines = output.split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return f"it ended with status {status}: {last}{seen}"
