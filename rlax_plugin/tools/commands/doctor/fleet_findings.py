"""The rules of ``rlax doctor`` about workers, the groups that they generate, and their rewards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rlax_plugin.base.liveness.marks import STOPPED, Role
from rlax_plugin.base.liveness.run_status import (
    SILENT,
    SLOW_S,
    TIMES,
    ControllerStatus,
    GroupStatus,
    JobStatus,
    LossStatus,
    WorkerStatus,
)
from rlax_plugin.base.text.amounts import in_seconds
from rlax_plugin.run.controller.limits import rewards_fail
from rlax_plugin.tools.commands.doctor.evidence import CLOCK_S, Evidence, Finding, Process

_NETWORK = "if its process lives, look at the network between the machines"


def fleet_findings(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    """Finds what is wrong with workers, rewards and groups, the causes before their effects."""
    yield from _clocks(evidence, status)
    yield from _workers(evidence, status)
    yield from _rewards(evidence, status)
    yield from _jobs(evidence, status)
    yield from _slow_workers(evidence, status)  # a run goes on with them, but not without rewards
    yield from _groups(evidence, status)


def recent_losses(evidence: Evidence) -> list[str]:
    """Returns a sentence for each worker that was lost in the last ten minutes, back or not."""
    seen = evidence.seen
    if seen.status is None or (status := seen.status.controller) is None or seen.ended:
        return []
    now = evidence.now + seen.ahead_s
    said = []
    for loss in status.losses:
        often = "once" if loss.count == 1 else f"{loss.count} times"
        ago = in_seconds(max(0.0, now - loss.at))
        said.append(
            f"worker {loss.name} was lost {often} in the last 10 minutes, most recently {ago} ago "
            f"({loss.reason})"
        )
    return said


def _clocks(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    for worker in status.workers:
        ahead_s = worker.clock_s or 0.0
        # If the trainer's clock is wrong, the right ones differ from it.
        if min(abs(ahead_s), abs(ahead_s + evidence.seen.ahead_s)) > CLOCK_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            yield Finding(
                f"the clock of worker {worker.name} is {in_seconds(abs(ahead_s))} {side} "
                "the trainer's",
                try_="set that machine's clock: certificates are judged by it; deadlines are not",
            )


def _workers(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    deadlines = evidence.deadlines
    for worker in status.workers:
        process = evidence.worker(worker.name)
        if worker.suspicion:
            yield Finding(
                f"worker {worker.name} is suspect: {worker.suspicion}",
                try_="compare its packages, hardware and engine with those of the others; rlax "
                "token RUN --rotate --old-for 0 keeps out one that you do not want",
                process=process,
            )
        if process is not None and process.state in STOPPED:
            continue  # said already
        if worker.state == SILENT:
            yield Finding(
                f"worker {worker.name} has sent no heartbeat for {in_seconds(worker.silent_s)}; it "
                f"holds {worker.samples} samples",
                f"{deadlines.lost_s:g} s without one (rlax.deadlines.heartbeats_lost x "
                "heartbeat_s): then its groups run elsewhere",
                _NETWORK,
                process,
            )
            continue
        yield from _loading(evidence, status, worker)
    for lost in status.lost:
        if lost.silent_s > SLOW_S and not _is_stopped_or_killed(evidence, lost.name):
            yield _lost(evidence, lost)
    for sentence in status.failing:
        yield Finding(sentence, try_="its log in logs/ has the reason; the launcher tries on")
    if not status.workers and status.samples:
        yield Finding(
            f"no worker is there for {status.samples} samples",
            f"rlax.deadlines.startup_s = {deadlines.startup_s:g} s",
            "start one: rlax train has printed the command; logs/ has what ended the others",
        )


def _slow_workers(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    for worker in status.workers:
        if worker.slowness:
            yield Finding(
                worker.slowness,
                try_="look for other programs on its machine, and for a chip that is throttled or "
                "older; it gets less work, and more as soon as it is faster",
                process=evidence.worker(worker.name),
            )


def _loading(
    evidence: Evidence, status: ControllerStatus, worker: WorkerStatus
) -> Iterator[Finding]:
    """Finds a worker that cannot load weights; the first ones may take as long as they need."""
    process, weights_s = evidence.worker(worker.name), evidence.deadlines.weights_s
    ends = f"rlax.deadlines.weights_s = {weights_s:g} s: then it continues with older weights"
    usual_s = status.step_s or 0.0
    loading_s = worker.loading_s or 0.0
    if worker.version >= 0 and usual_s and loading_s > max(SLOW_S, TIMES * usual_s):
        yield Finding(
            f"worker {worker.name} has been loading weights for {in_seconds(loading_s)}; a step "
            f"usually takes {in_seconds(usual_s)}",
            ends,
            advice_on_weights(
                evidence,
                "the store of weights is slow or away, or its engine hangs: see its log and stacks",
            ),
            process,
        )
    if times := worker.load_failures:
        often = "once" if times == 1 else f"{times} times"
        yield Finding(
            f"worker {worker.name} could not read weights {often} in the last minute",
            ends,
            advice_on_weights(
                evidence,
                "its log has the errors; look at the disk or network of the store of weights",
            ),
            process,
        )


def absent(evidence: Evidence, role: Role) -> list[Process]:
    """Returns the processes of a role that are frozen, or that were killed without a successor."""
    its = [one for one in evidence.processes if one.mark.role == role]
    living = {one.mark.name for one in its if one.lives}
    return [
        one for one in its if one.state in STOPPED or not (one.lives or one.mark.name in living)
    ]


def advice_on_weights(evidence: Evidence, otherwise: str) -> str:
    """Returns the process that holds weights up, if it is known that one does."""
    still = (one for one in evidence.processes if one.lives and one.mark.still)
    loops = (one for one in still if one.mark.role in ("trainer", "parameter server"))
    if (who := next(iter([*absent(evidence, "parameter server"), *loops]), None)) is None:
        return otherwise
    return f"it waits for {who.mark.who}, which is named above: the store may be all right"


def _is_stopped_or_killed(evidence: Evidence, name: str) -> bool:
    """True if the findings about processes say already why a worker of this machine is missing."""
    return any(one.mark.name == name for one in absent(evidence, "worker"))


def _lost(evidence: Evidence, lost: LossStatus) -> Finding:
    return Finding(
        f"worker {lost.name} was lost ({lost.reason}) and has not come back, "
        f"{in_seconds(lost.silent_s)} after its last heartbeat; its groups run elsewhere",
        try_=f"{_NETWORK}, and whether it is frozen; it comes back by itself",
        process=evidence.worker(lost.name),
    )


def _rewards(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    if status.reward_error:
        living = (one for one in evidence.processes if one.lives and one.mark.role == "rewards")
        yield Finding(
            rewards_fail(status.reward_error),
            "rlax.curation.guard or max_refill, which end a run that keeps too few groups",
            "mend that reward, or what it depends on: docs/endings.md explains the status before "
            "the error, and rlax score tries rewards on a file",
            next(living, None),
        )


def long_jobs(status: ControllerStatus) -> dict[int, list[JobStatus]]:
    """Returns the rewards and episodes that take far longer than others, by their process."""
    limit_s = max(SLOW_S, TIMES * (status.reward_s or 0.0))
    by_process = defaultdict[int, list[JobStatus]](list)
    for job in status.jobs:
        if job.used_s > limit_s:
            by_process[job.pid].append(job)
    return by_process


def _jobs(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    for pid, jobs in long_jobs(status).items():
        if (process := evidence.by_pid.get(pid)) is not None and process.state in STOPPED:
            continue  # said already
        job = max(jobs, key=lambda one: one.used_s)
        more = f", and {len(jobs) - 1} more there" if len(jobs) > 1 else ""
        yield Finding(
            f"{job.what} of prompt {job.prompt} takes {in_seconds(job.used_s)} so far, in process "
            f"{pid}{more}",
            job_ends(job),
            "its stacks show where it is; rlax score tries rewards on a file",
            process,
        )


def job_ends(job: JobStatus) -> str:
    """Returns the deadline of a reward or an episode, with the value that the config has."""
    what, times = "the sample has", ""
    if job.samples > 1:
        what, times = "its samples have", f" for each of the {job.samples} samples of its group"
    value_s = job.limit_s / max(1, job.samples)
    return f"{job.key} = {value_s:g} s{times}: then {what} no reward, and the process is replaced"


def _groups(evidence: Evidence, status: ControllerStatus) -> Iterator[Finding]:
    still = defaultdict[tuple[str, bool], list[GroupStatus]](list)
    for group in status.groups:
        if group.still_s > SLOW_S:
            still[group.worker, group.unknown].append(group)
    for (worker, unknown), groups in still.items():
        group = max(groups, key=lambda one: one.still_s)
        prompt = f" (prompt {group.prompt})" if group.prompt else ""
        more = f", and {len(groups) - 1} more" if len(groups) > 1 else ""
        since = in_seconds(group.still_s)
        said = f"{group.what}{prompt} makes no progress on worker {worker} since {since}{more}"
        advice = "its engine may compile or load weights; its log and stacks say more"
        if unknown:
            said = (
                f"worker {worker} does not have {group.what}{prompt} any more, whose answer has "
                f"not arrived for {since}{more}: the connection to the worker loses what is sent"
            )
            advice = "look at the network from the trainer to that worker, and its firewall"
        yield Finding(said, group.ends, advice, evidence.worker(worker))
