"""Gives jobs to reward processes, restarts processes, and handles their ends."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.rewards.blame import Blame
from rlax_plugin.rewards.handle import KilledError
from rlax_plugin.rewards.process_jobs import Runner
from rlax_plugin.rewards.reward_jobs import Job, Priority

_STARTS = 3
"""Attempts to start a process before the run ends; a failed start is never blamed on a sample.

At the start of the run, only processes ended by a signal are tried again: code that fails or hangs
there does so every time."""

_AHEAD_S, _MOST_AHEAD = 0.005, 16
"""Bounds on the jobs sent ahead of the one that a main thread runs: their time and their number.

Their time is estimated from the slowest recent job."""
_QUICK_S = 0.001
"""A process with less work than this gets the next job as well: waking another costs more."""

_CLOSED = "the pool of reward processes is closed"


class Distributor:
    """Distributes jobs among processes, the oldest group first.

    Args:
      concurrency: number of async rewards at a time in one process.
      log: the file with the output of rewards, for messages.
      note: see ``RewardPool``.

    Attributes:
      runners: the processes.
      blame: decides which jobs ended them.
    """

    runners: Sequence[Runner] = ()
    blame: Blame

    def __init__(self, concurrency: int, log: Path, note: Callable[[str], None]):
        self._concurrency, self._log, self._note = concurrency, log, note
        self._waiting: list[Job] = []  # a heap
        self._plays: deque[Job] = deque()
        self._alone: deque[Job] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._orders = itertools.count()
        self._soon = False  # whether a pump is under way
        self._failure: RlaxError | None = None
        self._lately_s: float | None = None  # the slowest job on a main thread of late

    async def start(self) -> None:
        """Starts all processes; see ``RewardPool.start``."""
        # All of them to their end: ``close`` does not know of one that is only being started.
        starts = (self._first_start(runner) for runner in self.runners)
        for error in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(error, RlaxError):
                raise self._not_started(error) from error
            if error is not None:
                raise error

    async def _first_start(self, runner: Runner) -> None:
        for _ in range(_STARTS - 1):
            try:
                return await runner.start()
            except KilledError as error:
                self._note(f"{error}; it is started again")
        await runner.start()

    def _not_started(self, error: RlaxError) -> RlaxError:
        return RlaxError(f"a reward process did not start; see {self._log} ({error})")

    def add(self, jobs: Sequence[Job]) -> None:
        """Adds the jobs of one group; each job receives its own result.

        Raises:
          RlaxError: the run is over.
        """
        if self._failure is not None:
            raise self._failure
        priority = Priority(next(self._orders))
        for place, job in enumerate(jobs):
            job.priority, job.place = priority, place
            self._enqueue(job)
        self._pump()

    def _enqueue(self, job: Job) -> None:
        if job.plays:
            self._plays.append(job)
        elif job.alone:
            self._alone.append(job)
        else:
            heapq.heappush(self._waiting, job)

    def abandon(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs whose results are no longer wanted."""
        for job in jobs:
            job.abandon()
        for runner in self.runners:
            its = [job for job in runner.jobs if job in jobs]
            if runner.on_main and runner.on_main[0] in its:
                # It may be at this job still, which must not cost the next one.
                runner.end()
                self._again(runner)
                continue
            for job in its:
                if job.on_loop:
                    runner.cancel(job)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Gives waiting jobs to processes, and starts processes if there are more jobs."""
        self._soon = False
        if self._failure is not None:
            return
        wanted = self._give_alone()
        while self._waiting:
            runner = None if self._waiting[0].abandoned else self._free(self._waiting[0].on_loop)
            if runner is None and not self._waiting[0].abandoned:
                wanted += len(self._waiting)
                break
            job = heapq.heappop(self._waiting)
            if runner is not None:
                wanted += runner.load > 0
                runner.give(job)
        while self._plays:
            up = [r for r in self.runners if r.up and r.reserved is None]
            if not up:
                wanted += len(self._plays)
                break
            if not (job := self._plays.popleft()).abandoned:
                min(up, key=lambda runner: runner.load).give(job)
        for runner in self.runners:
            runner.flush()
            if wanted > 0 and runner.down:
                wanted -= 1
                self._start(runner)

    def _give_alone(self) -> int:
        """Gives each job that must run alone its own process; returns how many still wait."""
        waiting = 0
        for job in list(self._alone):
            if job.abandoned:
                self._alone.remove(job)
                continue
            its = next((r for r in self.runners if r.reserved is job), None)
            if its is None:
                free = [r for r in self.runners if r.up and r.reserved is None]
                its = min(free, key=lambda runner: runner.load, default=None)
            if its is not None:
                its.reserved = job
            if its is None or its.load:
                waiting += 1
                continue
            self._alone.remove(job)
            its.give(job)
        return waiting

    def _free(self, on_loop: bool) -> Runner | None:
        """Returns the process that should get the next sample; None if there is none."""
        lately = self._lately_s
        ahead = 1 if lately is None else min(_MOST_AHEAD, 1 + int(_AHEAD_S / max(lately, 1e-6)))
        best, least = None, self._concurrency if on_loop else ahead
        for runner in self.runners:
            if runner.up and runner.reserved is None:
                load = runner.scores_on_loop if on_loop else len(runner.on_main)
                if load < least:
                    best, least = runner, load
                    if not on_loop and load * (lately or 0.0) < _QUICK_S and (lately or not load):
                        break
        return best

    def _start(self, runner: Runner) -> None:
        runner.starting = True
        task = asyncio.ensure_future(self._started(runner))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _started(self, runner: Runner) -> None:
        try:
            for attempt in range(1, _STARTS + 1):
                try:
                    await runner.start()
                    break
                except RlaxError as error:
                    if self._failure is not None:
                        return
                    if attempt == _STARTS:
                        return self._fail(self._not_started(error))
                    self._note(f"{error}; it is started again")
        finally:
            runner.starting = False
        self._pump()

    def late(self, job: Job, runner: Runner) -> DeadlineError:
        return self.blame.late(job, runner)

    def done(self, job: Job, runner: Runner) -> None:
        self.blame.done(job)
        if not job.on_loop:
            self._lately_s = max(job.clock.used_s, 0.9 * (self._lately_s or 0.0))
        if runner.reserved is job:
            runner.reserved = None
        self._pump_soon()

    def gone(self, runner: Runner, how: str | DeadlineError, ended: Sequence[Job]) -> None:
        if self._failure is not None:
            return
        try:
            verdicts = self.blame.verdicts(runner, how, ended)
        except RlaxError as error:
            self._fail(error)
            return
        for job, error in verdicts.items():
            runner.drop(job)
            job.fail(str(error))
        if ended:  # a group that ends all processes holds up no other
            ended[0].priority.order = next(self._orders)
            heapq.heapify(self._waiting)
        self._again(runner)

    def _again(self, runner: Runner) -> None:
        """Puts the jobs of a process that is gone back into the queue."""
        for job in runner.clear():
            if not job.abandoned:
                self._enqueue(job)
        self._pump_soon()

    def _fail(self, error: RlaxError) -> None:
        """Ends every job because the run is over."""
        self._failure = error
        waiting = [*self._waiting, *self._plays, *self._alone]
        for job in [*waiting, *(job for runner in self.runners for job in runner.jobs)]:
            job.fail_run(error)

    async def close(self) -> None:
        """Ends all processes, with everything they have started."""
        self._fail(RlaxError(_CLOSED))
        for task in self._starting:
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        for runner in self.runners:
            runner.end()
        await asyncio.gather(*(runner.process.ended() for runner in self.runners))
