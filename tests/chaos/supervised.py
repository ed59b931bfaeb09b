"""Starts the processes of a run as a supervisor would, and again when they were killed."""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlax_plugin.base.files.faults import LOG
from rlax_plugin.base.liveness.marks import Mark, lives, marks
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.run.programs.serve import PARENT

OWNER = "RLAX_CHAOS"
"""Environment variable by which all processes of one run under chaos are known."""

_END_S = 20.0  # for a killed process to be gone
_EXPECTED_ENDS = 10  # of a worker whose network and whose trainer fail
_LOOK_S = 0.02
_TESTS = Path(__file__).parents[1]  # with the plug-ins of this package
_MOST_ENDS = 20  # of a worker that is started again whatever it ends with


@dataclass(slots=True)
class Started:
    """A process that is started again when it was killed.

    Attributes:
      arguments: of ``rlax``.
      environment: variables besides those of this process.
      after: a file that must exist before it is started.
      always: True to start it again whenever it has failed, as a worker on another machine is.
      killed: number of times it was killed here; ``ended``: by any signal.
      failed: number of times it ended with an error; ``error`` is the status of the last time.
    """

    arguments: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    after: Path | None = None
    always: bool = False
    failed: int = 0
    error: int = 0
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
    """

    directory: Path
    state_dir: Path
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    _parts: dict[str, Started] = field(default_factory=dict)

    @property
    def events(self) -> Path:
        """The file with the fault points that are reached."""
        return self.directory / "events.log"

    @property
    def log(self) -> Path:
        """The file with the output of the trainer's processes."""
        return self.log_of("trainer")

    def add(self, name: str, *arguments: str, **settings: Any) -> None:
        """Adds a process, which ``start`` starts; the trainer is the last one.

        Args:
          name: the trainer is ``trainer``.
          arguments: of ``rlax``.
          settings: see ``Started``.
        """
        self._parts[name] = Started(arguments, self.log_of(name), **settings)

    def log_of(self, name: str) -> Path:
        """The file with the output of a part."""
        return self.directory / f"{name.replace(' ', '-')}.out"

    def start(self) -> None:
        """Starts all processes."""
        self.go_on()

    def go_on(self) -> None:
        """Starts what was killed again."""
        for part in self._parts.values():
            if part.process is None:
                if part.after is None or part.after.exists():
                    self._start(part)
                continue
            status = part.process.poll() or 0
            if status > 0:
                part.failed, part.error = part.failed + (not part.error), status
            if status < 0:
                part.ended += 1
            elif not (status and part.always and part.failed < _MOST_ENDS):
                continue
            self._start(part)

    def _start(self, part: Started) -> None:
        part.error = 0
        environment = os.environ | part.environment
        environment |= {LOG: str(self.events), OWNER: self.owner, PARENT: str(os.getpid())}
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_TESTS), path]))
        with part.log.open("ab") as out:
            part.process = subprocess.Popen(
                python_command("-m", "rlax_plugin", *part.arguments),
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
        return {name: max(0, part.starts - 1) for name, part in self._parts.items()}

    def living(self, role: str) -> list[Mark]:
        """Returns the living processes of a role, in the order of their names."""
        alive = [mark for mark in marks(self.state_dir) if mark.role == role and lives(mark)]
        return sorted(alive, key=lambda mark: (mark.name, mark.pid))

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
        return True

    @property
    def crashes(self) -> list[str]:
        """Ends of processes that nothing here explains, in words."""
        return [
            f"the {name} was ended by a signal {part.ended - part.killed} times more often than "
            "it was killed: it crashed, or the machine had no memory left"
            for name, part in self._parts.items()
            if part.ended > part.killed
        ] + [*self._failures()]

    def _failures(self) -> Iterator[str]:
        for name, part in self._parts.items():
            if name != "trainer" and part.failed > (_EXPECTED_ENDS if part.always else 0):
                yield f"the {name} ended with an error {part.failed} times: see {part.log}"

    def wait(self, within_s: float) -> int | None:
        """Returns the exit status of the run, restarting what was killed; None: it took longer."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            self.go_on()
            if (status := self.status) is not None and status >= 0:
                return status
            time.sleep(_LOOK_S)
        return None

    def close(self, within_s: float) -> list[str]:
        """Ends the parameter server; returns what has outlived the run, which is killed as well.

        Args:
          within_s: seconds in which all processes must have ended.
        """
        for part in self._parts.values():
            if part.process is not None and part.process.poll() is None:
                # The parameter server, or a trainer that has not ended in time, with its workers.
                part.process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + within_s
        while (left := self._owned()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        commands = [f"{process.pid} {' '.join(_command(process))}"[:200] for process in left]
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        for part in self._parts.values():
            if part.process is not None:
                part.process.kill()
                part.process.wait(_END_S)
        return commands

    def _owned(self) -> list[psutil.Process]:
        """Returns the living processes of the run."""
        owned = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                mine = process.environ().get(OWNER) == self.owner
                mine = mine and process.status() != psutil.STATUS_ZOMBIE
                if mine and process.pid != os.getpid():
                    owned.append(process)
        return owned


def _command(process: psutil.Process) -> Sequence[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return ()
