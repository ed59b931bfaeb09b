"""Starts the processes of a run as a supervisor would, and again when they were killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from rlax_plugin.liveness.marks import Mark, lives, marks
from rlax_plugin.processes.python import python_command
from rlax_plugin.records.faults import LOG
from rlax_plugin.worker.serve import PARENT

OWNER = "RLAX_CHAOS"
"""Environment variable by which all processes of one run under chaos are known."""

_END_S = 20.0  # for a killed process to be gone
_EXPECTED_ENDS = 10  # of a worker whose network and whose trainer fail
_LOOK_S = 0.02
_RUN_FAILED = 1  # exit status of ``rlax train``
_TESTS = Path(__file__).parents[1]  # with the plug-ins of this package
_TRACEBACK = "Traceback (most recent call last)"
_MOST_ENDS = 20  # of a worker that is started again whatever it ends with

_FULL_DISK = re.compile(r"^error: .*(?:disk is full|No space left|quota exceeded).*", re.MULTILINE)


@dataclass(slots=True)
class Started:
    """A process that is started again when it was killed.

    Attributes:
      arguments: of ``rlax``.
      environment: variables besides those of this process.
      after: a file that must exist before it is started.
      module: of its program.
      always: True to start it again whenever it has failed, as a worker on another machine is.
      node: True for a node of a Ray cluster, which outlives the run.
      killed: number of times it was killed here; ``ended``: by any signal.
      failed: number of times it ended with an error; ``error`` is the status of the last time.
      log_at: size of the log at its last start.
    """

    arguments: tuple[str, ...]
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    after: Path | None = None
    module: str = "rlax_plugin"
    always: bool = False
    node: bool = False
    failed: int = 0
    error: int = 0
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
      excused: True if a disk was full, so the trainer may end with an error once.
      explained: sentences with which it did so; ``silent``: ends without that sentence.
    """

    directory: Path
    state_dir: Path
    excused: bool = False
    explained: list[str] = field(default_factory=list)
    silent: int = 0
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    _parts: dict[str, Started] = field(default_factory=dict)
    _nodes: set[int] = field(default_factory=set)  # sessions

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
          arguments: of ``rlax``, or of another ``module``.
          settings: see ``Started``.
        """
        self._parts[name] = Started(arguments, self.log_of(name), **settings)

    def log_of(self, name: str) -> Path:
        """The file with the output of a part."""
        return self.directory / f"{name.replace(' ', '-')}.out"

    def start(self) -> None:
        """Starts all processes."""
        self.go_on()

    def ended(self, name: str) -> bool:
        """True if the process of a part has ended."""
        process = self._parts[name].process
        return process is not None and process.poll() is not None

    def go_on(self) -> None:
        """Starts what was killed again, and what has failed for a reason."""
        for name, part in self._parts.items():
            if part.process is None:
                if part.after is None or part.after.exists():
                    self._start(part)
                continue
            status = part.process.poll() or 0
            if status > 0:
                part.failed, part.error = part.failed + (not part.error), status
            if status < 0:
                part.ended += 1
            elif status == _RUN_FAILED and name == "trainer" and self.excused:
                self._explain(part)
            elif not (status and part.always and part.failed < _MOST_ENDS):
                continue
            self._start(part)

    def _explain(self, part: Started) -> None:
        """Takes the excuse, and the sentence that the trainer printed since its last start."""
        output = part.log.read_bytes()[part.log_at :].decode(errors="replace")
        sentence = _FULL_DISK.search(output)
        self.excused = False
        if sentence is not None and _TRACEBACK not in output:
            self.explained.append(sentence.group())
        else:
            self.silent += 1

    def _start(self, part: Started) -> None:
        part.error = 0
        environment = os.environ | part.environment
        environment |= {LOG: str(self.events), OWNER: self.owner, PARENT: str(os.getpid())}
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_TESTS), path]))
        with part.log.open("ab") as out:
            part.log_at = out.tell()
            part.process = subprocess.Popen(
                python_command("-m", part.module, *part.arguments),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        part.starts += 1
        if part.node:
            self._nodes.add(part.process.pid)

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

    def below(self, name: str) -> list[psutil.Process]:
        """Returns the processes of a part's session, and all processes below them."""
        process = self._parts[name].process
        return [] if process is None else _of_sessions({process.pid})

    def send(self, name: str, number: signal.Signals) -> bool:
        """Sends a signal to the process of a part; returns False if it has ended."""
        process = self._parts[name].process
        if process is None or process.poll() is not None:
            return False
        process.send_signal(number)
        return True

    def halt(self, name: str) -> list[psutil.Process]:
        """Stops all processes of a part, as a machine that is paused; returns them."""
        process = self._parts[name].process
        return [] if process is None else _halted({process.pid})

    def kill(self, name: str) -> None:
        """Kills all processes of a part, as a machine that is lost."""
        part = self._parts[name]
        part.killed += not self.ended(name)
        for process in self.halt(name):
            with suppress(psutil.Error):
                process.kill()
        if part.process is not None:
            part.process.wait(_END_S)

    def end_nodes(self) -> None:
        """Kills all nodes; they are not started again."""
        for process in _halted(self._nodes):
            with suppress(psutil.Error):
                process.kill()
        for name in [name for name, part in self._parts.items() if part.node]:
            process = self._parts.pop(name).process
            if process is not None:
                process.wait(_END_S)

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
        for _ in range(self.silent):
            yield "the trainer ended with an error, and did not say that a fault was the reason"
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

        The nodes of a Ray cluster outlive it, but no worker on them does.

        Args:
          within_s: seconds in which all processes must have ended.
        """
        for part in self._parts.values():
            if part.process is not None and not part.node and part.process.poll() is None:
                # The parameter server, or a trainer that has not ended in time, with its workers.
                part.process.send_signal(signal.SIGTERM)
        until_s = time.monotonic() + within_s
        while (left := self._owned()) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        commands = [f"{process.pid} {' '.join(_command(process))}"[:200] for process in left]
        self.end_nodes()
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        for part in self._parts.values():
            if part.process is not None:
                part.process.kill()
                part.process.wait(_END_S)
        return commands

    def _owned(self) -> list[psutil.Process]:
        """Returns the living processes of the run; those of nodes are not its own."""
        owned = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                mine = process.environ().get(OWNER) == self.owner
                mine = mine and os.getsid(process.pid) not in self._nodes
                mine = mine and process.status() != psutil.STATUS_ZOMBIE
                if mine and process.pid != os.getpid():
                    owned.append(process)
        return owned


def _of_sessions(sessions: Set[int]) -> list[psutil.Process]:
    """Returns the living processes of sessions, and all processes below them."""
    living: dict[int, psutil.Process] = {}
    for leader in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(leader.pid) in sessions:
                for process in (leader, *leader.children(recursive=True)):
                    if process.status() != psutil.STATUS_ZOMBIE:
                        living[process.pid] = process
    return list(living.values())


def _halted(sessions: Set[int]) -> list[psutil.Process]:
    """Stops such processes, also those that they have started meanwhile; returns them."""
    halted: dict[int, psutil.Process] = {}
    while new := [each for each in _of_sessions(sessions) if each.pid not in halted]:
        for process in new:
            halted[process.pid] = process
            with suppress(psutil.Error):
                process.suspend()
    return list(halted.values())


def _command(process: psutil.Process) -> Sequence[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return ()
