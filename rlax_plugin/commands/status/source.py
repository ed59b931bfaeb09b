"""Reads the status of a run: from its file on this machine, or from its controller."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from rlax_plugin.config.loading import of_yaml
from rlax_plugin.errors import ConfigError, RlaxError
from rlax_plugin.liveness.marks import is_of_here, lives, marks
from rlax_plugin.liveness.marks import state as kernel_state
from rlax_plugin.liveness.run_status import RunStatus, read_status
from rlax_plugin.liveness.status_file import last_status, written_at
from rlax_plugin.records.files import CONFIG, RunFiles
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.channels import describe
from rlax_plugin.rpc.doors import connect
from rlax_plugin.rpc.secret import Secret
from rlax_plugin.start.holder import holder
from rlax_plugin.start.run_directory import state_directory

_OLD = 5  # times the interval between two statuses


@dataclass(frozen=True, slots=True)
class Seen:
    """A status, and what is known of its writer.

    Attributes:
      status: None: the run has written none.
      problem: the reason why the status is not the present one; empty: it is.
      ended: True if the trainer's process has ended.
      ahead_s: seconds by which the clock of the writer is ahead of this process's.
    """

    status: RunStatus | None
    problem: str = ""
    ended: bool = False
    ahead_s: float = 0.0


def run_state_directory(run: str) -> Path:
    """Returns the state directory of a run on this machine.

    Raises:
      ConfigError: there is no such run, or it runs elsewhere.
    """
    files = RunFiles(run)
    section = of_yaml(files.config(), files.location(CONFIG)).section
    found = state_directory(section, files)
    if not found.is_dir():
        reason = (
            f"has no state directory on this machine ({found}): ask its controller instead, with "
            "--controller HOST:PORT and --token-file FILE"
        )
        raise ConfigError("RUN", run, reason)
    return found


def seen_here(state_dir: Path) -> Seen:
    """Reads the status that a run on this machine has written last.

    Raises:
      RlaxError: the file cannot be read.
    """
    status, age_s, ahead_s = last_status(state_dir), 0.0, 0.0
    if status is not None:
        # The trainer's clock may differ, and the file's is that of this machine.
        at = written_at(state_dir)
        age_s, ahead_s = max(0.0, time.time() - at), status.at - at
    trainers = [mark for mark in marks(state_dir) if mark.role == "trainer"]
    living = [mark for mark in trainers if lives(mark)]
    # A fresh one may come from a process in another container, which cannot be seen from here.
    fresh = status is not None and age_s < _OLD * status.every_s
    if not living and not (fresh and not any(map(is_of_here, trainers))):
        if holder(state_dir) is not None:
            return Seen(
                status,
                "the trainer writes no status: it is of an earlier version, or its "
                "disk was full when it started",
            )
        how = "was killed" if trainers else "has ended"
        return Seen(status, f"the process of the trainer {how}", ended=True)
    if status is None or (living and status.pid not in {mark.pid for mark in living}):
        return Seen(None, "the run has just started")
    for mark in living:
        with suppress(OSError):  # it has ended meanwhile
            if kernel_state(mark.pid) in ("T", "t"):
                who = f"the trainer (pid {mark.pid})"
                problem = f"{who} is stopped: kill -CONT {mark.pid} continues it"
                return Seen(status, problem, ahead_s=ahead_s)
    if age_s > _OLD * status.every_s:
        problem = f"the trainer has written no status for {age_s:.0f} s"
        return Seen(status, problem, ahead_s=ahead_s)
    if status.controller is not None:
        silent_s = status.at - status.controller.seen
        if silent_s > _OLD * status.every_s:
            problem = f"the event loop of the controller has not answered for {silent_s:.0f} s"
            return Seen(status, problem, ahead_s=ahead_s)
    return Seen(status, ahead_s=ahead_s)


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
