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

import psutil

from rlax_plugin.liveness.marks import Mark, Role, lives, marks
from rlax_plugin.records.faults import LOG

OWNER = "RLAX_CHAOS"
"""Environment variable by which all processes of one run under chaos are known."""

_END_S = 20.0  # for processes of a run that has ended to be gone
_LOOK_S = 0.02


@dataclass(slots=True)
class Started:
    """A process that is started again when it was killed.

    Attributes:
      killed: number of times it was killed here; ``ended``: by any signal.
    """

    arguments: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    killed: int = 0
    ended: int = 0


@dataclass(slots=True)
class SupervisedRun:
    """A run and, if it has one, its separate parameter server.

    Args:
      directory: for logs and the log of events.
      state_dir: of the run.
      train: arguments of ``rlax`` for the trainer.
      server: those for the parameter server; empty: the trainer has it.
    """

    directory: Path
    state_dir: Path
    train: tuple[str, ...]
    server: tuple[str, ...] = ()
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

    def start(self) -> None:
        """Starts all processes."""
        if self.server:
            log = self.directory / "parameter-server.out"
            self._parts["parameter server"] = Started(self.server, log)
        self._parts["trainer"] = Started(self.train, self.log)
        self.go_on()

    def go_on(self) -> None:
        """Starts what was killed again."""
        for part in self._parts.values():
            if part.process is None:
                self._start(part)
            elif (part.process.poll() or 0) < 0:
                part.ended += 1
                self._start(part)

    def _start(self, part: Started) -> None:
        environment = os.environ | {LOG: str(self.events), OWNER: self.owner}
        with part.log.open("ab") as out:
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

    def living(self, role: Role) -> list[Mark]:
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
        if number == signal.SIGKILL and mark.role in self._parts:
            self._parts[mark.role].killed += 1
        return True

    @property
    def crashes(self) -> list[str]:
        """Ends of processes by signals that were not sent here, in words."""
        return [
            f"the {name} was ended by a signal {part.ended - part.killed} times more often than "
            "it was killed: it crashed, or the machine had no memory left"
            for name, part in self._parts.items()
            if part.ended > part.killed
        ]

    def wait(self, within_s: float) -> int | None:
        """Returns the exit status of the run, restarting what was killed; None: it took longer."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            if (status := self.status) is not None and status >= 0:
                return status
            self.go_on()
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
