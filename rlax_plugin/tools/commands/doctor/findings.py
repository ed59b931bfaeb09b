"""The rules of ``rlax doctor``: each says what is stuck or slow, what will end it, what to try."""

from __future__ import annotations

from collections.abc import Iterator

from rlax_plugin.base.liveness.marks import STOPPED
from rlax_plugin.base.liveness.run_status import SLOW_S, TIMES, Doing, RunStatus
from rlax_plugin.base.text.amounts import in_bytes, in_seconds
from rlax_plugin.tools.commands.doctor.evidence import CLOCK_S, Evidence, Finding, Process
from rlax_plugin.tools.commands.doctor.fleet_findings import (
    absent,
    advice_on_weights,
    fleet_findings,
    job_ends,
    long_jobs,
)
from rlax_plugin.weights.publisher import ASKING

_FULL_SHARE, _FULL_BYTES = 0.02, 1 << 26  # free on a disk
_FEW_INODES = 100  # files that a disk can still take
_SMALL_SHARE = 0.25  # with more of it free, a disk of any size is not full
_LOW_MEMORY = 0.05  # share that is available
_ENOUGH_BYTES = 1 << 30  # more than that is free space, however small its share
_PHASE_S = 180.0  # of a start, which compiles and reads data
_CONTINUE = "the same rlax train command continues the run"
_STARTS_AGAIN = {
    "parameter server": ": start it again",
    "host": ": all hosts end, and must be started again with the same command",
}
_STORE = "the store of weights is slow or away: look at its disk or network"


def findings(evidence: Evidence) -> list[Finding]:
    """Returns all that is wrong, the causes before their effects."""
    found = [*_damaged(evidence), *_ended(evidence), *_machine(evidence), *_processes(evidence)]
    found += _children(evidence)
    if (status := evidence.seen.status) is not None and not evidence.seen.ended:
        found += _clock(evidence)
        # An old status says nothing about workers and groups as they are now.
        if (controller := status.controller) is not None and not evidence.seen.problem:
            found += fleet_findings(evidence, controller)
        found += _trainer(evidence, status)
    if not found and evidence.seen.problem and not evidence.seen.ended:
        found.append(Finding(evidence.seen.problem, try_="look again in a few seconds"))
    return found


def _damaged(evidence: Evidence) -> Iterator[Finding]:
    for problem in evidence.damaged:
        yield Finding(
            problem.rstrip("."),
            try_="other findings do not depend on this file; the version of rlax that trains the "
            "run can read what it has written",
        )


def _ended(evidence: Evidence) -> Iterator[Finding]:
    """Finds that a run has ended before its time; a killed one is found by its process."""
    if evidence.seen.outcome in ("failed", "interrupted", "unknown"):
        first = "do what the error says; " if evidence.seen.outcome == "failed" else ""
        yield Finding(evidence.seen.problem, try_=first + _continues(evidence), lost=True)


def _continues(evidence: Evidence) -> str:
    return _CONTINUE + ", once all hosts are started again" * (evidence.hosts > 1)


def _machine(evidence: Evidence) -> Iterator[Finding]:
    for disk in evidence.disks:
        if not disk.total:
            yield Finding(
                f"the file system of {disk.path} does not answer",
                f"rlax.deadlines.weights_s = {evidence.deadlines.weights_s:g} s",
                "look at its server and the network",
            )
            continue
        if disk.read_only:
            yield Finding(
                f"{disk.path} is read-only: the run cannot go on there, and nothing says how its "
                "processes have ended",
                try_=f"look at its disk (dmesg, mount); once it can be written, {_CONTINUE}",
                lost=True,
            )
        elif disk.inodes and disk.free_inodes < min(_FEW_INODES, _SMALL_SHARE * disk.inodes):
            yield Finding(
                f"the disk of {disk.path} can take only {disk.free_inodes} more files: its inodes "
                f"are used up ({disk.inodes:,})",
                f"rlax.deadlines.weights_s = {evidence.deadlines.weights_s:g} s ends the run if "
                "weights cannot be written",
                "remove files, of whatever size: df -i shows the use; rlax.retention keeps less",
            )
        # A small file system that is nearly empty has less than _FULL_BYTES free as well.
        least = max(_FULL_BYTES, min(_ENOUGH_BYTES, _FULL_SHARE * disk.total))
        if disk.free < min(least, _SMALL_SHARE * disk.total):
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


_KILLED = "the kernel does that if memory is short: see dmesg, and its log"
_KILLED_AT_END = (
    "a run kills at its end a worker that is stopped or stuck, and the kernel one if memory is "
    "short: see why the run has ended, dmesg, and the worker's log"
)


def _processes(evidence: Evidence) -> Iterator[Finding]:
    status = None if evidence.seen.problem else evidence.seen.status
    jobs = long_jobs(status.controller) if status is not None and status.controller else {}
    failing = status.controller.failing if status is not None and status.controller else ()
    read_only = any(disk.read_only for disk in evidence.disks)
    living = {(p.mark.role, p.mark.name) for p in evidence.processes if p.lives}
    for process in evidence.processes:
        mark = process.mark
        if not process.lives:
            if read_only:
                continue  # also one that has ended by itself could not remove its mark
            if mark.role == "trainer" and evidence.seen.ended:
                yield Finding(
                    f"{mark.who} has ended without a word: it was killed, or the machine failed",
                    try_=_continues(evidence),
                    process=process,
                    lost=True,
                )
            elif (mark.role, mark.name) not in living and mark.role != "rewards":
                if any(text.startswith(f"worker {mark.name} ") for text in failing):
                    continue  # which says how the newest of its processes has ended
                by = _STARTS_AGAIN.get(mark.role, "")
                yield Finding(
                    f"{mark.who} was killed{by}",
                    try_=_KILLED_AT_END if evidence.seen.ended else _KILLED,
                    process=process,
                )
            continue
        if process.state in STOPPED:
            its = jobs.get(mark.pid)
            yield Finding(
                f"{mark.who} is stopped by a signal or a debugger",
                _ends_frozen(evidence, process) if its is None else job_ends(its[0]),
                f"kill -CONT {mark.pid} continues it",
            )
            continue
        for what, since in mark.still:
            if mark.pid in jobs:
                break  # the finding about the job also says which prompt, and its own deadline
            still_s = max(0.0, evidence.now - since)
            yield Finding(
                f"{what} of {mark.who} stands still since {in_seconds(still_s)}",
                _ends_still(evidence, process, what),
                "its stacks show where",
                process,
            )


def _children(evidence: Evidence) -> Iterator[Finding]:
    """Finds processes that a launcher, a plug-in or a library has started and that are frozen."""
    for pid, command in evidence.stopped_children:
        yield Finding(
            f"process {pid} of the trainer is stopped by a signal or a debugger: {command}",
            try_=f"kill -CONT {pid} continues it",
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
    if role == "host" or (role == "trainer" and evidence.hosts > 1):
        return f"rlax.deadlines.host_s = {deadlines.host_s:g} s ends all hosts"
    if role == "parameter server":
        return f"rlax.deadlines.weights_s = {deadlines.weights_s:g} s ends the run"
    return ""


def _clock(evidence: Evidence) -> Iterator[Finding]:
    ahead_s = evidence.seen.ahead_s
    if abs(ahead_s) > CLOCK_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        yield Finding(
            f"the clock of the trainer is {in_seconds(abs(ahead_s))} {side} this command's",
            try_="set the machine's clock (chrony, ntpd); deadlines use another clock and hold",
        )


def _trainer(evidence: Evidence, status: RunStatus) -> Iterator[Finding]:
    trainer = evidence.by_pid.get(status.pid)
    if trainer is not None and trainer.state in STOPPED:
        return
    if (locked := status.ledger) is not None:
        since_s = max(0.0, evidence.now + evidence.seen.ahead_s - locked.since)
        yield Finding(
            f"{locked.what}: since {in_seconds(since_s)}",
            "that time ends the run, which the same command continues",
            "end the transaction in that process, or the process",
            trainer,
        )
    away = absent(evidence, "host")  # which holds up the computation of all others
    if (failed := status.unwritten) is not None:
        times = "once" if failed.count == 1 else f"{failed.count} times"
        yield Finding(
            f"weights could not be written {times} in the last minute: {failed.what}",
            _weights_end(evidence),
            advice_on_weights(evidence, _STORE),
            trainer,
        )
    if status.phase is not None:
        if (now := evidence.now + evidence.seen.ahead_s) - status.phase.since > _PHASE_S:
            yield _slow(evidence, status.phase, now, 0.0, trainer)
        return
    controller = status.controller
    usual_s = (controller.step_s or 0.0) if controller is not None else 0.0
    # The first step compiles. A publication holds the next step up, so it is named first.
    publishing_s = max(SLOW_S if usual_s else 2 * SLOW_S, TIMES * usual_s)
    training_s = max(2 * SLOW_S, TIMES * usual_s)
    now = evidence.now + evidence.seen.ahead_s
    for doing, limit_s in ((status.publisher, publishing_s), (status.trainer, training_s)):
        if doing is not None and now - doing.since > limit_s and not away:
            yield _slow(evidence, doing, now, usual_s, trainer)


def _weights_end(evidence: Evidence) -> str:
    return (
        f"rlax.deadlines.weights_s = {evidence.deadlines.weights_s:g} s for one version ends the "
        "run, which the same command continues"
    )


def _slow(
    evidence: Evidence, doing: Doing, now: float, usual_s: float, trainer: Process | None
) -> Finding:
    usual = f"; a step usually takes {in_seconds(usual_s)}" if usual_s else ""
    since = in_seconds(max(0.0, now - doing.since))
    advice = ""
    if doing.what.endswith(ASKING):
        where = "the process of the parameter server: the trainer's, unless it is separate"
        advice = advice_on_weights(evidence, f"look at {where}")
    elif doing.what.startswith("publishing"):
        advice = advice_on_weights(evidence, _STORE)
    elif evidence.hosts > 1 and doing.what.startswith("training"):
        advice = (
            f"each of the {evidence.hosts} hosts waits for the slowest one: look at the processes "
            "of all of them"
        )
    elif doing.what.startswith("waiting"):
        advice = "see the groups, rewards and workers"
    return Finding(f"{doing.what}: since {since}{usual}", doing.ends, advice, trainer)
