"""Reads the status of a run: from its file on this machine, or from its controller."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import grpc
import psutil

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.liveness.ending import last_failure, recorded_at
from rlax_plugin.base.liveness.marks import STOPPED, Mark, is_of_here, lives, marks
from rlax_plugin.base.liveness.marks import state as kernel_state
from rlax_plugin.base.liveness.plain_files import is_read_only, tail
from rlax_plugin.base.liveness.run_status import RunStatus, read_status
from rlax_plugin.base.liveness.status_file import last_status, written_at
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.security.secret import Secret
from rlax_plugin.rpc.transport.channels import describe
from rlax_plugin.rpc.transport.doors import connect
from rlax_plugin.run.start.holder import holder
from rlax_plugin.tools.commands.status.place import read_plain

UNDATED = "the time of the last status lies in the future"
"""The beginning of a ``problem``: so nothing says how old the status is."""

STARTED = "the run has just started"
_STARTS_S = 120.0  # in which a process imports and checks its config, before it leaves its mark
_OLD = 5  # times the interval between two statuses


@dataclass(frozen=True, slots=True)
class Seen:
    """A status, and what is known of its writer.

    Attributes:
      status: None: the run has written none.
      problem: the reason why the status is not the present one; empty: it is.
      outcome: the end of the run; empty: the trainer's process has not ended.
      ahead_s: seconds by which the clock of the writer is ahead of this process's.
      frozen: names of workers on this machine that are stopped by a signal or a debugger.
      living: names of workers on this machine whose processes live.
      marked: names of workers that have left a mark on this machine, also of ones that are gone.
      stands: True if the trainer's process lives, but is frozen, or does not answer.
    """

    status: RunStatus | None
    problem: str = ""
    outcome: Outcome = ""
    ahead_s: float = 0.0
    frozen: frozenset[str] = frozenset()
    living: frozenset[str] = frozenset()
    marked: frozenset[str] = frozenset()
    stands: bool = False

    @property
    def ended(self) -> bool:
        """True if the trainer's process has ended."""
        return bool(self.outcome)

    @property
    def goes_on(self) -> bool:
        """True if the trainer's process has not ended, and answers."""
        return not self.ended and not self.stands


def seen_here(state_dir: Path, files: RunFiles | None = None, *, readable: bool = True) -> Seen:
    """Reads the status that a run on this machine has written last.

    Args:
      files: its run directory; None: the state directory.
      readable: False looks at the processes only, as the status cannot be read.

    Raises:
      RlaxError: the file cannot be read.
    """
    found = marks(state_dir)
    workers = [mark for mark in found if mark.role == "worker"]
    return replace(
        _of_trainer(state_dir, files, found, readable=readable),
        frozen=frozenset(mark.name for mark in workers if _is_stopped(mark)),
        living=frozenset(mark.name for mark in workers if lives(mark)),
        marked=frozenset(mark.name for mark in workers if is_of_here(mark)),
    )


def _is_stopped(mark: Mark) -> bool:
    with suppress(OSError):  # it has ended meanwhile
        return lives(mark) and kernel_state(mark.pid) in STOPPED
    return False


def _of_trainer(
    state_dir: Path, files: RunFiles | None, found: Sequence[Mark], *, readable: bool
) -> Seen:
    status, age_s, ahead_s = last_status(state_dir) if readable else None, 0.0, 0.0
    if status is not None:
        # The trainer's clock may differ, and the file's is that of this machine.
        at = written_at(state_dir)
        age_s, ahead_s = time.time() - at, status.at - at
    trainers = [mark for mark in found if mark.role == "trainer"]
    living = [mark for mark in trainers if lives(mark)]
    # A fresh one may come from a process in another container, which cannot be seen from here.
    fresh = status is not None and age_s < _OLD * status.every_s
    fresh = fresh and last_failure(state_dir) is None  # a process that runs has no end on record
    if not living and not (fresh and not any(map(is_of_here, trainers))):
        if (process := holder(state_dir)) is not None:
            return _without_mark(status, process, recorded_at(state_dir))
        # What a process left on a disk that has become read-only says nothing about its end.
        killed = bool(trainers) and not is_read_only(state_dir)
        outcome, sentence = outcome_of(files or RunFiles(state_dir), state_dir, killed=killed)
        return Seen(status, sentence, outcome)
    if status is None or (living and status.pid not in {mark.pid for mark in living}):
        return Seen(None, STARTED)
    for mark in (*living, *(one for one in found if one.role == "host")):
        if _is_stopped(mark):
            who = f"the {mark.who}"
            problem = f"{who} is stopped: kill -CONT {mark.pid} continues it"
            return Seen(status, problem, ahead_s=ahead_s, stands=True)
    if age_s < -_OLD * status.every_s:
        # The trainer writes one every second: it has not done so since the clock was set back.
        return Seen(status, f"{UNDATED}, {-age_s:,.0f} s ahead", ahead_s=ahead_s)
    if age_s > _OLD * status.every_s:
        problem = f"the trainer has written no status for {age_s:.0f} s"
        return Seen(status, problem, ahead_s=ahead_s, stands=True)
    if status.controller is not None:
        silent_s = status.at - status.controller.seen
        if silent_s > _OLD * status.every_s:
            problem = f"the event loop of the controller has not answered for {silent_s:.0f} s"
            return Seen(status, problem, ahead_s=ahead_s, stands=True)
    return Seen(status, ahead_s=ahead_s)


def _without_mark(status: RunStatus | None, process: psutil.Process, ended_at: float) -> Seen:
    """Returns what a trainer does that lives and has no mark."""
    with suppress(psutil.Error):  # it has ended meanwhile
        began_at = process.create_time()
        if ended_at > began_at:
            problem = f"the run is ending: its process (pid {process.pid}) still closes its parts"
            return Seen(status, problem)
        if time.time() - began_at < _STARTS_S:
            return Seen(None, STARTED)
    problem = "the trainer writes no status: it is of an earlier version, or its disk was full when"
    return Seen(status, f"{problem} it started")


def seen_there(controller: str, secret: Secret, within_s: float) -> Seen:
    """Asks a controller for the status of its run.

    Raises:
      RlaxError: it does not answer, or with no status.
    """
    return asyncio.run(_asked(controller, secret, within_s))


async def _asked(controller: str, secret: Secret, within_s: float) -> Seen:
    connection = connect(controller, secret)
    try:
        request = pb.StatusRequest()
        reply = await rpc.RunStub(connection).Status(request, timeout=within_s)
    except grpc.aio.AioRpcError as error:
        await connection.diagnose(error)
        why = describe(error)
        raise RlaxError(f"the controller at {controller} gives no status: {why}") from None
    finally:
        await connection.close()
    status = read_status(reply.status, f"the answer of {controller}")
    return Seen(status, ahead_s=status.at - time.time())


Outcome = Literal["", "complete", "failed", "interrupted", "killed", "unknown"]
"""The end of a run; empty: it goes on. ``unknown``: it is not complete, and left no reason."""

_LOG_BYTES, _LONGEST = 1 << 16, 600


def outcome_of(files: RunFiles, state_dir: Path, *, killed: bool) -> tuple[Outcome, str]:
    """Returns the outcome of a run whose process has ended, and a sentence that says it.

    Args:
      killed: True if the process has left its mark behind.
    """
    if killed:
        return "killed", "the process of the trainer was killed"
    failure = last_failure(state_dir)
    try:
        complete = _is_complete(files)
    except RlaxError as error:
        return "unknown", f"the process of the trainer has ended, and {error}"
    if failure:
        when = "after" if complete else "before"
        return "failed", f"the run ended {when} its last step: {failure}"
    if complete:
        return "complete", "the process of the trainer has ended: the run is complete"
    if failure is not None:
        return "interrupted", "the run was interrupted before its last step"
    said = "the run ended before its last step, and has not recorded why"
    if is_read_only(state_dir):
        return "unknown", f"{said}: {state_dir} is read-only"
    if logged := _last_error(state_dir / "logs" / "trainer.log"):
        said += f"; the last error in logs/trainer.log is: {logged}"
    return "unknown", said


def _is_complete(files: RunFiles) -> bool:
    """True if ``summary.json`` says that all steps are trained.

    Raises:
      RlaxError: it cannot be read.
    """
    try:
        document = json.loads(read_plain(files, "summary.json"))
    except FileNotFoundError:
        return False
    except (ValueError, RecursionError):
        raise RlaxError(f"{files.location('summary.json')} is damaged") from None
    return isinstance(document, dict) and document.get("complete") is True


def _last_error(log: Path) -> str:
    """Returns the last line of a log that reports an error of this project; empty: there is none.

    Libraries report errors from which they recover.
    """
    with suppress(OSError):
        for line in reversed(tail(log, _LOG_BYTES).decode(errors="replace").splitlines()):
            if line.startswith("error: ") or " ERROR rlax." in line:
                return one_line(line, _LONGEST)
    return ""
