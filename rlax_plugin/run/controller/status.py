"""Collects the status of a run: its pace, workers, slowest groups and rewards."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlax_plugin.base.liveness.activity import Failures
from rlax_plugin.base.liveness.machine import CLOCK
from rlax_plugin.base.liveness.run_status import (
    MOST_SHOWN,
    SILENT,
    SLOW_S,
    TIMES,
    ControllerStatus,
    GroupStatus,
    JobStatus,
    LossStatus,
    WorkerStatus,
    finite,
    shown,
)
from rlax_plugin.base.liveness.status_file import EVERY_S
from rlax_plugin.rollout.fleet.fleet import FleetListener, Worker
from rlax_plugin.rollout.fleet.tickets import Under
from rlax_plugin.run.controller.controller import Controller
from rlax_plugin.weights.verification import LOAD_FAILURES, LOADING

_SAMPLES = 30  # heartbeats, or statuses, over which the load is averaged
_PHASES = {"wait": "time/wait_s", "train": "time/train_s", "publish": "time/publish_on_loop_s"}
_GROUP_S = "rlax.deadlines.group_s"
_PAUSED_S = 3 * EVERY_S  # between two statuses, after which this process has not run meanwhile
_LOST_S = 600.0  # for which a lost worker is shown: its name may never come back
_MOST_LOSSES = 10_000  # that are counted
_ENDED = ("left", "the run is over")  # reasons for which a worker is not missed


@dataclass(slots=True)
class _Heard:
    """The last heartbeats of a worker.

    Attributes:
      at_s: of the newest, of ``time.monotonic``.
      clock_s: seconds by which its clock is ahead.
      tokens: generated so far; ``tokens_per_s``: between the last two heartbeats.
      loading_s: for which it has been loading a version; None: it loads none.
      unread: loadings that have failed; ``failures``: their number since its start.
    """

    at_s: float
    clock_s: float | None = None
    tokens: float | None = None
    tokens_per_s: float | None = None
    loading_s: float | None = None
    unread: Failures = field(default_factory=Failures)
    failures: float = 0.0


class _Average:
    """A mean over about the last ``_SAMPLES`` values; None before the first one."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        before = value if self.value is None else self.value
        self.value = before + (value - before) / _SAMPLES


class StatusCollector(FleetListener):
    """Learns of heartbeats, and says at any time how the run is; lives on the event loop.

    Args:
      last_step: of the run.

    Attributes:
      controller: of the run.
    """

    def __init__(self, controller: Controller, last_step: int):
        self.controller, self._last_step = controller, last_step
        self._generation, self._section = controller.generation, controller.section
        self._heard: dict[tuple[str, str], _Heard] = {}
        # Name, reason, when, last heartbeat; also of workers that are not missed.
        self._losses = deque[tuple[str, str, float, float]](maxlen=_MOST_LOSSES)
        self._steps, self._step_at = 0, None
        self._asked_s = time.monotonic()
        self._slots_used, self._rewards_used = _Average(), _Average()
        controller.fleet.listeners.append(self)

    def worker_heard(self, worker: Worker) -> None:
        now_s, before = time.monotonic(), self._heard.get(worker.identity)
        figures = worker.figures
        one = _Heard(now_s, tokens=figures.get("tokens_total"), loading_s=figures.get(LOADING))
        one.failures = figures.get(LOAD_FAILURES, 0.0)
        if (clock := figures.get(CLOCK)) is not None:
            one.clock_s = clock - time.time()
        if before is not None and before.tokens is not None and one.tokens is not None:
            one.tokens_per_s = (one.tokens - before.tokens) / max(now_s - before.at_s, 1e-3)
        if before is not None:
            one.unread = before.unread
            if (more := one.failures - before.failures) > 0:
                one.unread.failed("", int(min(more, 1e3)))
        self._heard[worker.identity] = one
        if worker.serves(None):
            self._slots_used.add(min(worker.assigned, worker.slots) / max(worker.slots, 1))

    def worker_lost(self, worker: Worker, reason: str) -> None:
        now_s = time.monotonic()
        heard_s = self._heard.pop(worker.identity, _Heard(now_s)).at_s
        self._losses.append((worker.name, reason, now_s, heard_s))

    def _allow_for_pause(self) -> None:
        """Forgives the workers the time in which this process did not run."""
        now_s = time.monotonic()
        paused_s, self._asked_s = now_s - self._asked_s, now_s
        if paused_s > _PAUSED_S:
            for heard in self._heard.values():
                heard.at_s = min(now_s, heard.at_s + paused_s)

    async def status(self) -> ControllerStatus:
        """Returns the present status."""
        self._allow_for_pause()
        run, section = self.controller, self._section
        # Without those of an earlier process, and the first one of this, which compiles.
        usable = max(0, run.stats.steps - run.stats.earlier - 1)
        recent = list(run.stats.recent)
        history = recent[-usable:] if usable else []
        newest = recent[-1] if recent else {}
        if (steps := run.stats.steps - run.stats.earlier) != self._steps:
            self._steps, self._step_at = steps, time.time()
        step_s = statistics.median([m["time/step_s"] for m in history]) if history else None
        step = run.run_state.next_step - 1
        scaler, pools = self._generation.scaler, self._generation.pools
        processes = sum(one.reward_processes for one in section.by_environment.values())
        self._rewards_used.add(sum(pool.busy for pool in pools) / max(processes, 1))
        rewards = [m["time/reward_s"] for m in history if "time/reward_s" in m]
        return ControllerStatus(
            seen=time.time(),
            step=step,
            steps=self._last_step,
            version=run.fleet.newest.number,
            step_at=self._step_at,
            step_s=finite(step_s),
            left_s=None if step_s is None else finite(step_s * max(0, self._last_step - step)),
            tokens_per_s=_rate(history, "rollout/tokens"),
            shares=_shares([m for m in history if m["time/step_s"] <= TIMES * (step_s or 0.0)]),
            staleness_mean=finite(newest.get("staleness/mean")),
            staleness_max=finite(newest.get("staleness/max")),
            max_staleness=section.staleness.max_staleness,
            reward_s=finite(statistics.fmean(rewards)) if rewards else None,
            reward_processes=processes,
            slots_used=self._slots_used.value,
            rewards_used=self._rewards_used.value,
            reward_error=shown(next((pool.failing for pool in pools if pool.failing), "")),
            replaced=sum(pool.replaced for pool in pools),
            reissued=run.run_state.totals.reissued,
            samples=self._generation.dispatcher.backlog.samples,
            batch=shown(run.ready),
            wanted=None if scaler is None else scaler.wanted,
            workers=tuple(map(self._worker, run.fleet.workers.values())),
            failing=self._failing(),
            losses=self._lately_lost(),
            damaged=tuple(map(shown, run.damaged[:MOST_SHOWN])),
            groups=tuple(map(self._group, self._generation.dispatcher.slowest(MOST_SHOWN))),
            jobs=self._jobs(),
        )

    def _failing(self) -> tuple[str, ...]:
        sentences = list(self._generation.launcher.failing.values())
        return tuple(map(shown, sentences[:MOST_SHOWN]))

    def _lately_lost(self) -> tuple[LossStatus, ...]:
        now_s, now = time.monotonic(), time.time()
        while self._losses and now_s - self._losses[0][2] >= _LOST_S:
            self._losses.popleft()
        last_reason = {name: reason for name, reason, *_ in self._losses}
        missed = [one for one in self._losses if one[1] not in _ENDED]
        counts = Counter(name for name, *_ in missed)
        newest = {one[0]: one for one in missed}.values()
        return tuple(
            LossStatus(
                name=shown(name),
                reason=shown(reason),
                at=now - (now_s - at_s),
                count=counts[name],
                away=name not in self.controller.fleet.workers and last_reason[name] not in _ENDED,
                silent_s=now_s - heard_s,
            )
            for name, reason, at_s, heard_s in sorted(newest, key=lambda one: one[2])[-MOST_SHOWN:]
        )

    def _worker(self, worker: Worker) -> WorkerStatus:
        now_s = time.monotonic()
        heard = self._heard.setdefault(worker.identity, _Heard(now_s))
        if now_s - heard.at_s > max(SLOW_S, 3 * self._section.deadlines.heartbeat_s):
            state = SILENT
        elif worker.version < 0:
            state = "loads weights"
        elif worker.draining:
            state = "drains"
        elif worker.keep >= 0:
            state = f"pinned to version {worker.keep}"
        elif worker.rests:
            state = f"rests: lost {self.controller.fleet.losses.count(worker.name)} times"
        else:
            state = "generates" if worker.assigned else "idle"
        return WorkerStatus(
            name=shown(worker.name),
            version=worker.version,
            samples=worker.assigned,
            slots=worker.slots,
            tokens_per_s=finite(heard.tokens_per_s),
            silent_s=now_s - heard.at_s,
            clock_s=finite(heard.clock_s),
            state=state,
            loading_s=finite(heard.loading_s),
            load_failures=heard.unread.count,
            suspicion=shown("; ".join(worker.suspicion.values())),
            speed=worker.speed,
        )

    def _group(self, under: Under) -> GroupStatus:
        key, section = under.key, self._section
        asked = self.controller.run_state.open.get(key.group) if key.purpose == "train" else None
        deadlines = section.deadlines
        ends = f"{_GROUP_S} = {deadlines.group_s:g} s without progress ends this attempt"
        if under.worker is None:
            ends = f"rlax.deadlines.startup_s = {deadlines.startup_s:g} s without any worker"
        return GroupStatus(
            what=str(key),
            prompt="" if asked is None else shown(asked.prompt.id),
            worker="" if under.worker is None else shown(under.worker.name),
            since=under.since,
            still_s=under.still_s,
            ends=ends,
            unknown=under.unknown,
        )

    def _jobs(self) -> tuple[JobStatus, ...]:
        slowest = [one for pool in self._generation.pools for one in pool.slowest(MOST_SHOWN)]
        slowest = heapq.nlargest(MOST_SHOWN, slowest, key=lambda pair: pair[0].clock.used_s)
        return tuple(
            JobStatus(
                what="an episode" if job.plays else "a reward",
                prompt=shown(job.prompt.id),
                used_s=job.clock.used_s,
                limit_s=job.limit_s,
                key=job.limit_key,
                pid=pid,
                samples=job.samples,
            )
            for job, pid in slowest
        )


def _shares(history: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns each phase's share of the time of these steps."""
    whole_s = sum(m["time/step_s"] for m in history)
    if whole_s <= 0:
        return {}
    shares = {name: sum(m[key] for m in history) / whole_s for name, key in _PHASES.items()}
    return shares | {"other": max(0.0, 1 - sum(shares.values()))}


def _rate(history: Sequence[Mapping[str, float]], name: str) -> float | None:
    seconds = sum(m["time/step_s"] for m in history)
    return finite(sum(m.get(name, 0.0) for m in history) / seconds) if seconds > 0 else None
