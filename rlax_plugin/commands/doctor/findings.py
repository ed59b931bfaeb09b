"""The rules of ``rlax doctor``: each says what is stuck or slow, what will end it, what to try."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlax_plugin.commands.doctor.evidence import Evidence, Process
from rlax_plugin.liveness.run_status import ControllerStatus, Doing, RunStatus
from rlax_plugin.text.amounts import in_bytes, in_seconds

_SLOW_S = 5.0  # below that nothing is worth a word
_FULL_SHARE, _FULL_BYTES = 0.02, 1 << 26  # free on a disk
_LOW_MEMORY = 0.05  # share that is available
_ENOUGH_BYTES = 1 << 30  # more than that is free space, however small its share
_CLOCK_S = 5.0
_TIMES = 10  # the usual time
_PHASE_S = 180.0  # of a start, which compiles and reads data


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
      what: it, with the process, since when.
      ends: the deadline that ends it; empty: none does.
      try_: advice to the operator.
      process: the one to ask for its stacks; None: none.
      lost: True if the run does not go on by itself.
    """

    what: str
    ends: str = ""
    try_: str = ""
    process: Process | None = None
    lost: bool = False


def findings(evidence: Evidence) -> list[Finding]:
    """Returns all that is wrong, the causes before their effects."""
    found = [*_machine(evidence), *_processes(evidence)]
    if (status := evidence.seen.status) is not None and not evidence.seen.ended:
        found += _clocks(evidence, status)
        # An old status says nothing about workers and groups as they are now.
        if (controller := status.controller) is not None and not evidence.seen.problem:
            found += [*_workers(evidence, controller), *_jobs(evidence, controller)]
            found += _groups(evidence, controller)
        found += _trainer(evidence, status)
    if not found and evidence.seen.problem and not evidence.seen.ended:
        found.append(Finding(evidence.seen.problem, try_="look again in a few seconds"))
    return found


def _machine(evidence: Evidence) -> Iterator[Finding]:
    for disk in evidence.disks:
        if not disk.total:
            yield Finding(
                f"the file system of {disk.path} does not answer",
                f"rlax.deadlines.weights_s = {evidence.deadlines.weights_s:g} s",
                "look at its server and the network",
            )
            continue
        if disk.free < max(_FULL_BYTES, min(_ENOUGH_BYTES, _FULL_SHARE * disk.total)):
            yield Finding(
                f"the disk of {disk.path} is full: {in_bytes(disk.free)} of "
                f"{in_bytes(disk.total)} are free",
                f"rlax.deadlines.weights_s = {evidence.deadlines.weights_s:g} s ends the run if "
                "weights cannot be written",
                "free some space: what failed is written again; rlax.retention and "
                "rlax.weights.keep keep less",
            )
    if evidence.available < min(_ENOUGH_BYTES, _LOW_MEMORY * evidence.memory):
        largest = max(evidence.processes, key=lambda one: one.rss, default=None)
        who = "" if largest is None else f"; {largest.mark.who} holds {in_bytes(largest.rss)}"
        yield Finding(
            f"memory is short: {in_bytes(evidence.available)} of {in_bytes(evidence.memory)} are "
            f"available{who}",
            try_="fewer workers or slots, or smaller batches; rlax check estimates what is needed",
        )


def _processes(evidence: Evidence) -> Iterator[Finding]:
    living = {(p.mark.role, p.mark.name) for p in evidence.processes if p.lives}
    for process in evidence.processes:
        mark = process.mark
        if not process.lives:
            if mark.role == "trainer" and evidence.seen.ended:
                yield Finding(
                    f"{mark.who} has ended without a word: it was killed, or the machine failed",
                    try_="the same rlax train command continues the run",
                    process=process,
                    lost=True,
                )
            elif (mark.role, mark.name) not in living and mark.role != "rewards":
                by = "" if mark.role == "worker" else ": start it again"
                yield Finding(f"{mark.who} was killed{by}", process=process)
            continue
        if process.state in ("T", "t"):
            yield Finding(
                f"{mark.who} is stopped by a signal or a debugger",
                _ends_frozen(evidence, process),
                f"kill -CONT {mark.pid} continues it",
            )
            continue
        if process.state == "D":
            yield Finding(
                f"{mark.who} waits for a disk or a network file system",
                try_="look at the machine's disks: dmesg, iostat",
                process=process,
            )
        for what, since in mark.still:
            yield Finding(
                f"{what} of {mark.who} stands still since {in_seconds(evidence.now - since)}",
                _ends_still(evidence, process, what),
                "its stacks show where",
                process,
            )


def _ends_still(evidence: Evidence, process: Process, what: str) -> str:
    """Returns the deadline that ends an activity of a process whose other threads go on."""
    deadlines = evidence.deadlines
    if what == "the engine":
        return f"rlax.deadlines.group_s = {deadlines.group_s:g} s: then its groups run elsewhere"
    if what == "a reward":
        return (
            f"rlax.deadlines.reward_s = {deadlines.reward_s:g} s, or episode_s = "
            f"{deadlines.episode_s:g} s for an environment: then the process is replaced"
        )
    return _ends_frozen(evidence, process)


def _ends_frozen(evidence: Evidence, process: Process) -> str:
    deadlines, role = evidence.deadlines, process.mark.role
    if role == "worker":
        return (
            f"rlax.deadlines.heartbeats_lost x heartbeat_s = {deadlines.lost_s:g} s without a "
            "heartbeat: then its groups run elsewhere"
        )
    if role == "rewards":
        return f"rlax.deadlines.reward_s = {deadlines.reward_s:g} s replaces it"
    if role == "host":
        return f"rlax.deadlines.host_s = {deadlines.host_s:g} s ends all hosts"
    if role == "parameter server":
        return f"rlax.deadlines.weights_s = {deadlines.weights_s:g} s ends the run"
    return ""


def _clocks(evidence: Evidence, status: RunStatus) -> Iterator[Finding]:
    ahead_s = status.at - evidence.now
    if ahead_s > _CLOCK_S:
        yield Finding(
            f"the clock of the trainer is {in_seconds(ahead_s)} ahead of this command's",
            try_="set the machine's clock (chrony, ntpd); deadlines use another clock and hold",
        )
    for worker in status.controller.workers if status.controller is not None else ():
        if worker.clock_s is not None and abs(worker.clock_s) > _CLOCK_S:
            side = "ahead of" if worker.clock_s > 0 else "behind"
            yield Finding(
                f"the clock of worker {worker.name} is {in_seconds(abs(worker.clock_s))} {side} "
                "the trainer's",
                try_="set that machine's clock: certificates are judged by it; deadlines are not",
            )


def _workers(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    deadlines = evidence.deadlines
    for worker in status.workers:
        process = evidence.worker(worker.name)
        if process is not None and process.state in ("T", "t"):
            continue  # said already
        if worker.silent_s > max(_SLOW_S, 3 * deadlines.heartbeat_s):
            yield Finding(
                f"worker {worker.name} has sent no heartbeat for {in_seconds(worker.silent_s)}; it "
                f"holds {worker.samples} samples",
                f"{deadlines.lost_s:g} s without one (rlax.deadlines.heartbeats_lost x "
                "heartbeat_s): then its groups run elsewhere",
                "if its process lives, look at the network between the machines",
                process,
            )
    if not status.workers and status.samples:
        yield Finding(
            f"no worker is there for {status.samples} samples",
            f"rlax.deadlines.startup_s = {deadlines.startup_s:g} s",
            "start one: rlax train has printed the command; logs/ has what ended the others",
        )


def _jobs(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    usual_s = status.reward_s or 0.0
    for job in status.jobs:
        if job.used_s <= max(_SLOW_S, _TIMES * usual_s):
            continue
        yield Finding(
            f"{job.what} of prompt {job.prompt} takes {in_seconds(job.used_s)} so far, in process "
            f"{job.pid}",
            f"{job.key} = {job.limit_s:g} s: then the sample has no reward, and the process is "
            "replaced",
            "its stacks show where it is; rlax score tries rewards on a file",
            evidence.by_pid.get(job.pid),
        )


def _groups(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    for group in status.groups:
        if group.still_s <= _SLOW_S:
            continue
        prompt = f" (prompt {group.prompt})" if group.prompt else ""
        yield Finding(
            f"{group.what}{prompt} makes no progress on worker {group.worker} since "
            f"{in_seconds(group.still_s)}",
            group.ends,
            "its engine may compile or load weights; its log and stacks say more",
            evidence.worker(group.worker),
        )


def _trainer(evidence: Evidence, status: RunStatus) -> Iterator[Finding]:
    trainer = evidence.by_pid.get(status.pid)
    if trainer is not None and trainer.state in ("T", "t"):
        return
    controller = status.controller
    usual_s = (controller.step_s or 0.0) if controller is not None else 0.0
    limit_s = max(2 * _SLOW_S, _TIMES * usual_s)
    doings = (status.trainer, status.publisher)
    if status.phase is not None:
        doings, limit_s, usual_s = (status.phase,), _PHASE_S, 0.0
    for doing in doings:
        if doing is not None and evidence.now - doing.since > limit_s:
            yield _slow(evidence, doing, usual_s, trainer)


def _slow(evidence: Evidence, doing: Doing, usual_s: float, trainer: Process | None) -> Finding:
    usual = f"; a step usually takes {in_seconds(usual_s)}" if usual_s else ""
    since = in_seconds(evidence.now - doing.since)
    advice = ""
    if doing.what.startswith("publishing"):
        advice = "the store of weights is slow or away: look at its disk or network"
    elif doing.what.startswith("waiting"):
        advice = "see the groups, rewards and workers"
    return Finding(f"{doing.what}: since {since}{usual}", doing.ends, advice, trainer)
