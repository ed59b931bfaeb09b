"""Starts the processes of a run as a supervisor would, and again when they were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlax_plugin.liveness.marks import Mark, lives, marks
from rlax_plugin.records.faults import LOG

OWNER = "RLAX_CHAOS"
"""Environment variable by which all processes of one run under chaos are known."""

_END_S = 20.0  # for processes of a run that has ended to be gone
_LOOK_S = 0.02
_RUN_FAILED = 1  # exit status of ``rlax train``
_SENTENCES = (b"error: ", b"can be continued with:")


@dataclass(slots=True)
class Started:
    """A process that is started again when it was killed.

    Attributes:
      arguments: of ``rlax``.
      environment: variables besides those of this process.
      after: a file that must exist before it is started.
      always: True to start it again whenever it has failed, as a worker on another machine is.
      killed: number of times it was killed here; ``ended``: by any signal.
      log_at: size of the log at its last start.
    """

    arguments: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    after: Path | None = None
    always: bool = False
    log_at: int = 0
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    killed: int = 0
    ended: int = 0


@dataclass(slots=True)
class SupervisedRun:
    """A run and the processes beside its trainer that an operator starts.

    Attributes:
      directory: for logs and the log of events.
      state_dir: of the run.
      hosts: number of the trainer's hosts on this machine; 1: the trainer is one process.
      excused: number of times the trainer may yet end with an error, because of a fault.
      silent: number of times it did so without a sentence.
    """

    directory: Path
    state_dir: Path
    hosts: int = 1
    excused: int = 0
    silent: int = 0
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    _parts: dict[str, Started] = field(default_factory=dict)

    @property
    def events(self) -> Path:
        """The file with the fault points that are reached."""
        return self.directory / "events.log"

    @property
    def log(self) -> Path:
        """The file with the output of the trainer's processes."""
        return self.directory / "trainer.out"

    def add(self, name: str, *arguments: str, **settings: Any) -> None:
        """Adds a process, which ``start`` starts; the trainer is the last one.

        Args:
          name: the trainer is ``trainer``.
          arguments: of ``rlax``.
          settings: see ``Started``.
        """
        log = self.directory / f"{name.replace(' ', '-')}.out"
        self._parts[name] = Started(arguments, log, **settings)

    def start(self) -> None:
        """Starts all processes."""
        self.go_on()

    def go_on(self) -> None:
        """Starts what was killed again, and what has failed for a reason."""
        for name, part in self._parts.items():
            if part.process is None:
                if part.after is None or part.after.exists():
                    self._start(part)
                continue
            status = part.process.poll() or 0
            if status < 0:
                part.ended += 1
            elif status == _RUN_FAILED and name == "trainer" and self.excused:
                self.excused -= 1
                self.silent += not self._sentence(part)
            elif not (status and part.always):
                continue
            self._start(part)

    def _sentence(self, part: Started) -> bool:
        """True if a part has said why it ended since its last start."""
        with part.log.open("rb") as file:
            file.seek(part.log_at)
            return any(said in file.read() for said in _SENTENCES)

    def _start(self, part: Started) -> None:
        environment = os.environ | part.environment | {LOG: str(self.events), OWNER: self.owner}
        with part.log.open("ab") as out:
            part.log_at = out.tell()
            part.process = subprocess.Popen(
                [sys.executable, "-m", "rlax_plugin", *part.arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        part.starts += 1

    @property
    def status(self) -> int | None:
        """Exit status of the trainer's process; None: it runs."""
        process = self._parts["trainer"].process
        return None if process is None else process.poll()

    @property
    def restarts(self) -> dict[str, int]:
        """Name of a part -> how often it was started again."""
        return {name: part.starts - 1 for name, part in self._parts.items()}

    def living(self, role: str) -> list[Mark]:
        """Returns the living processes of a role, in the order of their names."""
        found = [one for one in marks(self.state_dir) if one.role == role and lives(one)]
        return sorted(found, key=lambda one: (one.name, one.pid))

    def strike(self, mark: Mark, number: signal.Signals) -> bool:
        """Sends a signal to exactly this process; returns False if it has ended."""
        try:
            descriptor = os.pidfd_open(mark.pid)
        except OSError:
            return False
        try:
            mine = psutil.Process(mark.pid).environ().get(OWNER) == self.owner
            if not (mine and lives(mark)):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except (OSError, psutil.Error):
            return False
        finally:
            os.close(descriptor)
        if number == signal.SIGKILL:
            for part in self._parts.values():
                part.killed += part.process is not None and part.process.pid == mark.pid
            if self.hosts > 1 and mark.role in ("trainer", "host"):
                self.excused += 1  # the others end, and say so
        return True

    @property
    def crashes(self) -> list[str]:
        """Ends of processes by signals that were not sent here, in words."""
        return [
            f"the {name} was ended by a signal {part.ended - part.killed} times more often than "
            "it was killed: it crashed, or the machine had no memory left"
            for name, part in self._parts.items()
            if part.ended > part.killed
        ] + ["the trainer ended with an error, and without a sentence"] * self.silent

    def wait(self, within_s: float) -> int | None:
        """Returns the exit status of the run, restarting what was killed; None: it took longer."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            self.go_on()
            if (status := self.status) is not None and status >= 0:
                return status
            time.sleep(_LOOK_S)
        return None

    def close(self) -> list[str]:
        """Ends the parameter server; returns what has outlived the run, which is killed as well."""
        for part in self._parts.values():
            if part.process is not None and part.process.poll() is None:
                # The parameter server, or a trainer that has not ended in time, with its workers.
                part.process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + _END_S
        while (left := self._owned()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        said = [f"{one.pid} {' '.join(_command(one))}"[:200] for one in left]
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        for part in self._parts.values():
            if part.process is not None:
                part.process.kill()
                part.process.wait(_END_S)
        return said

    def _owned(self) -> list[psutil.Process]:
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                mine = one.environ().get(OWNER) == self.owner
                if mine and one.pid != os.getpid() and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
        return found


def _command(process: psutil.Process) -> Sequence[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return ()
