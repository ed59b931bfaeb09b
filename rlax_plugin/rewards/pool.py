"""The pool of reward processes, which scores samples and plays episodes and survives crashes.

From bottom to top: a process, its jobs, the distribution of jobs, and the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import logging
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlax_plugin.config import RlaxSection, Schedule, last_of, value_at
from rlax_plugin.errors import DeadlineError, RlaxError
from rlax_plugin.liveness.marks import forget
from rlax_plugin.ports.environment import Outcome, PlayedEpisode
from rlax_plugin.processes.python import python_command
from rlax_plugin.processes.tree import kill_tree
from rlax_plugin.rewards.messages import ON_LOOP, Witness, line, prompt_to, shared
from rlax_plugin.rewards.output import RewardOutput
from rlax_plugin.rewards.process import Needs
from rlax_plugin.rewards.scoring import (
    MOST_IN_VAIN,
    NO_ANSWER,
    Blame,
    Clocks,
    Job,
    PlayCounts,
    PlayJob,
    Priority,
    RewardCall,
    ScoreJob,
    Scores,
    Send,
    clock_of,
)
from rlax_plugin.types import Episode, Prompt, Score, Unscored

_LONGEST = 1 << 26  # bytes of a line; each job has a bound of its own below that
_END_S = 10.0  # until a process that was killed is gone
_HOW_S = 5.0  # until one that sends nothing more has ended, if it does


class KilledError(RlaxError):
    """A signal has ended a process: it crashed, or was killed from outside."""


class Lines(asyncio.Protocol):
    """Receives lines and the end of the connection.

    Attributes:
      take: called with each line.
      ended: called once, when there are no more lines or one is too long.
      closed: True once the connection has ended.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._transport: asyncio.Transport | None = None
        self.take: Callable[[bytes], None] = lambda one: None
        self.ended: Callable[[], None] = lambda: None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if b"\n" not in data:
            if len(self._rest) > _LONGEST and self._transport is not None:
                self._transport.abort()
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        for one in lines:
            self.take(bytes(one))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.ended()


class RewardProcess:
    """One reward process. It is started again after each ``end``.

    Attributes:
      lines: the lines it sends.
      needs: requirements of its rewards.
      witness: shared memory that names its current job.
    """

    witness: Witness

    def __init__(self, hello: dict[str, Any], output: RewardOutput, startup_s: float):
        self._hello, self._output, self._startup_s = hello, output, startup_s
        self._process: asyncio.subprocess.Process | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Task[None] | None = None
        self.lines = Lines()
        self.needs = Needs()

    @property
    def pid(self) -> int:
        """Its process id; 0 while there is none."""
        process = self._process  # read once: another thread may ask
        return 0 if process is None else process.pid

    async def start(self) -> None:
        """Starts the process, after ending any earlier one.

        Raises:
          DeadlineError: it took too long.
          KilledError: a signal ended it before it was ready.
          RlaxError: it ended by itself before it was ready.
        """
        self.end()
        ours, theirs = socket.socketpair()
        with theirs, shared() as memory:
            self.witness = Witness(memory.fileno())
            descriptors = theirs.fileno(), memory.fileno()
            process = self._process = await asyncio.create_subprocess_exec(
                *python_command("-m", "rlax_plugin.rewards.process", *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._output.descriptor,
                stderr=self._output.descriptor,
                pass_fds=descriptors,
                start_new_session=True,  # a Ctrl-C is the controller's to handle
            )
        self._ended = asyncio.ensure_future(
            self._end_with_it(process, Path(self._hello["run_dir"]))
        )
        self.lines = lines = Lines()
        first: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def take(one: bytes) -> None:
            if not first.done():
                first.set_result(one)

        def ended() -> None:
            first.cancel()

        lines.take, lines.ended = take, ended
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_unix_connection(lambda: lines, sock=ours)
        self.send(line(self._hello))
        try:
            await asyncio.wait({first}, timeout=self._startup_s)
            if not first.done():
                raise DeadlineError(
                    "starting a reward process", self._startup_s, "rlax.deadlines.startup_s"
                )
            self.needs = await self._ready(first)
        except BaseException:
            self.end()
            raise

    async def _ready(self, first: asyncio.Future[bytes]) -> Needs:
        how, kind = NO_ANSWER, RlaxError
        if first.cancelled():
            process = self._process
            how = await self.how_it_ended()
            if process is not None and (process.returncode or 0) < 0:
                kind = KilledError
        else:
            with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
                said = json.loads(first.result())
                return Needs(*(bool(said[name]) for name in ("group", "tokens", "waits")))
        raise kind(f"a reward process {how} before it had started")

    @staticmethod
    async def _end_with_it(process: asyncio.subprocess.Process, run_dir: Path) -> None:
        """Waits for the process to end, and then kills the processes that it has started."""
        await process.wait()
        kill_tree(process.pid, gone=True)
        forget(run_dir, process.pid)

    def send(self, data: bytes) -> None:
        """Sends lines; does nothing if the process has ended."""
        if self._transport is not None:
            self._transport.write(data)

    async def how_it_ended(self) -> str:
        """Describes in words how the process ended; kills it if it still runs."""
        process = self._process
        if process is None:
            return "was ended"  # by the end of the run
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _HOW_S)
        if (code := process.returncode) is None:
            self.end()
            return NO_ANSWER
        if code >= 0:
            return f"ended with exit code {code}"
        known = {int(number): number.name for number in signal.Signals}
        return f"was ended by {known.get(-code, f'signal {-code}')}"

    def end(self) -> None:
        """Kills the process and all that it has started, whatever it is doing."""
        self.lines.take, self.lines.ended = (lambda one: None), (lambda: None)
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            kill_tree(process.pid)  # else ``_end_with_it`` does; its pid may be another's
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def ended(self) -> None:
        """Waits until a killed process is gone, for at most 10 s."""
        if self._ended is not None:
            await asyncio.wait({self._ended}, timeout=_END_S)


_GRACE_S = 0.1  # for a line that is there when its deadline has passed
_CANCEL_S = 1.0  # for a job that is cancelled to end

# Whatever a message may be that is no answer.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Owner(Protocol):
    """The receiver of the results of jobs."""

    def late(self, job: Job, runner: Runner) -> DeadlineError:
        """Returns the error for a job that has exceeded its time limit."""
        ...

    def done(self, job: Job, runner: Runner) -> None:
        """Handles a job that has its result."""
        ...

    def gone(self, runner: Runner, how: str | DeadlineError, ended: Sequence[Job]) -> None:
        """Handles a process that has ended, by itself as ``how`` says, or because a job was late.

        Args:
          runner: the process.
          how: a description of its end, or the error of the late job.
          ended: the jobs that may have caused it; the others are still in ``runner.jobs``.
        """
        ...


class Runner:
    """A process and its jobs.

    Attributes:
      begun: number of jobs that it has begun since it was started.
      up: True if it accepts jobs; ``starting``: True if it is being started.
      reserved: the job that needs it alone.
    """

    def __init__(self, process: RewardProcess, owner: Owner, clocks: Clocks = clock_of):
        self.process, self._owner, self._clocks = process, owner, clocks
        self.on_main: deque[Job] = deque()  # the first one runs
        self.on_loop: dict[int, Job] = {}
        self.begun = 0
        self.up = self.starting = False
        self.reserved: Job | None = None
        self._out: list[bytes] = []
        self._told: dict[bool, Any] = {}  # on the loop? -> the prompt that was sent last
        self._numbers = self._lives = 0
        self._ending: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None  # of the first one on the main thread

    @property
    def jobs(self) -> list[Job]:
        return [*self.on_main, *self.on_loop.values()]

    @property
    def load(self) -> int:
        return len(self.on_main) + len(self.on_loop)

    @property
    def down(self) -> bool:
        """True if it has to be started."""
        return not self.up and not self.starting and self._ending is None

    @property
    def scores_on_loop(self) -> int:
        return sum(not job.plays for job in self.on_loop.values())

    async def start(self) -> None:
        """Starts the process, see ``RewardProcess.start``."""
        await self.process.start()
        self.begun, self.up = 0, True
        self._told.clear()
        self.process.lines.take, self.process.lines.ended = self._take, self._ended
        if self.process.lines.closed:
            self._ended()

    def give(self, job: Job) -> None:
        """Gives it a job; ``flush`` sends it."""
        self._numbers += 1
        clock = self._clocks(job, lambda: self._expired(job))
        job.begin(self._numbers, clock, self._sender())
        with_prompt = self._told.get(job.on_loop) is not job.prompt
        data = line(job.message(with_prompt=with_prompt))
        if not job.plays:
            self._told[job.on_loop] = job.prompt
        if job.on_loop:
            self.on_loop[job.number] = job
            self._begins(job)
        else:
            self.on_main.append(job)
            if len(self.on_main) == 1:
                self._begins(job)
        self._out.append(ON_LOOP + data if job.on_loop else data)

    def flush(self) -> None:
        if self._out:
            self.process.send(b"".join(self._out))
            self._out.clear()

    def _sender(self) -> Send:
        """Returns a function that sends to the present process, and never to a later one.

        An answer of the policy may come when the process that asked has ended. The next one does
        not know the question, and while it starts, it understands only its first message.
        """
        life = self._lives

        def send(message: Mapping[str, Any]) -> None:
            if life == self._lives:
                self._send_now(message)

        return send

    def _send_now(self, message: Mapping[str, Any]) -> None:
        self.process.send(ON_LOOP + line(message))

    def _begins(self, job: Job) -> None:
        self.begun += 1
        job.clock.go(timer=job.on_loop)
        if not job.on_loop and self._watch is None:
            # One timer for all that follow one another: most of them end long before it.
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(job.clock.left_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self.on_main:
            job = self.on_main[0]
            if job.clock.left_s:
                loop = asyncio.get_running_loop()
                self._watch = loop.call_later(job.clock.left_s, self._look)
            else:
                self._expired(job)

    def _take(self, data: bytes) -> None:
        try:
            message = json.loads(data)
            number = message["job"]
            job = self.on_loop.get(number) or self.on_main[0]
            if job.number != number:
                raise ValueError("the answer of another job")
            if "at" in message:
                job.reward = int(message["at"])
            elif "runs" in message:
                (job.clock.go if message["runs"] is True else job.clock.stop)()
            elif "cancelling" in message:
                job.cancelling = True
            elif (job.late or job.abandoned) and "call" not in message:
                self._finish(job)
                if job.late:
                    job.fail(str(job.late))
                self._owner.done(job, self)
            elif job.take(message, len(data)):
                self._finish(job)
                self._owner.done(job, self)
        except _WRONG:
            self._end_of(NO_ANSWER)

    def _finish(self, job: Job) -> None:
        job.clock.stop()
        if job.on_loop:
            self.on_loop.pop(job.number, None)
            return
        self.on_main.popleft()
        if self.on_main:
            self._begins(self.on_main[0])

    def _expired(self, job: Job) -> None:
        # After a pause of this very process the timer may come before a line that is there.
        number = job.number
        asyncio.get_running_loop().call_later(_GRACE_S, self._is_late, job, number)

    def _is_late(self, job: Job, number: int) -> None:
        if job not in self.jobs or job.number != number or job.clock.left_s or job.late:
            return
        job.late = self._owner.late(job, self)
        if job.on_loop:
            self.cancel(job)
        else:
            self._end_for(job)

    def cancel(self, job: Job) -> None:
        """Cancels a job on the event loop, and ends the process if that does not end the job."""
        self._send_now({"job": job.number, "cancel": True})
        self._soon(job, _CANCEL_S)

    def _soon(self, job: Job, wait_s: float) -> None:
        asyncio.get_running_loop().call_later(wait_s, self._not_cancelled, job, job.number)

    def _not_cancelled(self, job: Job, number: int) -> None:
        if self.on_loop.get(number) is not job:
            return
        culprit = job
        if not job.cancelling:  # the loop is blocked, perhaps by another one, in its own good time
            culprit = self.on_loop.get(self.process.witness.job, job)
            if culprit is not job and culprit.clock.runs and culprit.clock.left_s:
                self._soon(job, min(culprit.clock.left_s, _CANCEL_S))
                return
        culprit.late = culprit.late or self._owner.late(culprit, self)
        self._end_for(culprit)

    def _end_for(self, job: Job) -> None:
        error = job.late
        assert error is not None
        self.end()
        self._owner.gone(self, error, [job])

    def _ended(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._tell_how())

    async def _tell_how(self) -> None:
        self.up = False
        for job in self.jobs:
            job.clock.end()
        how = await self.process.how_it_ended()
        self._ending = None
        self._end_of(how)

    def _end_of(self, how: str) -> None:
        """Ends the process although no job is late: it has ended by itself or sent invalid data."""
        executing = self.executing()
        self.end()
        self._owner.gone(self, how, executing)

    def executing(self) -> list[Job]:
        """Returns the jobs that run at this moment if they are known; else all that have begun."""
        found = [self.on_main[0]] if self.on_main else []
        with contextlib.suppress(KeyError, AttributeError):
            found.append(self.on_loop[self.process.witness.job])
        return found or list(self.on_loop.values())

    def end(self) -> None:
        """Kills the process; its jobs are kept."""
        self.up, self.reserved = False, None
        self._lives += 1
        self._out.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for job in self.jobs:
            job.clock.end()
        self.process.end()

    def clear(self) -> list[Job]:
        """Removes and returns all jobs."""
        jobs = self.jobs
        self.on_main.clear()
        self.on_loop.clear()
        return jobs

    def drop(self, job: Job) -> None:
        """Removes one job that has ended with the process."""
        if job in self.on_main:
            self.on_main.remove(job)
        self.on_loop.pop(job.number, None)


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


log = logging.getLogger("rlax.controller")


class RewardPool:
    """Scores completions and plays episodes in ``section.reward_processes`` processes.

    A sample is one job, unless a reward sees the group: then the group is one job. In each process,
    functions run one at a time, async rewards ``section.reward_concurrency`` at a time, and
    episodes of an environment without limit.

    A reward that raises or exceeds ``deadlines.reward_s`` marks its sample as errored; it never
    counts as 0 and never stops the run. Only the sample that hung is lost: the others of its
    process are scored in another process. If a process ends, its samples are scored once more. A
    sample is errored if the ended process was started for it, or if this happens to it again. If
    several samples may have ended a process, each is tried again in a process of its own.

    Args:
      section: the config.
      run_dir: its ``logs/rewards.log`` gets the output of rewards.
      key: dotted key of the list of rewards, for messages.
      note: called at once, with one line, when a process had to be replaced.
      clocks: make the clocks that measure the time of jobs.
      most_in_vain: two numbers, each per process: so many ends in a row without a result
        in between end the run. The first number holds before the first result of the run,
        the second one after it.
      functions: files of functions, see ``BuildContext``.

    Attributes:
      played: counts of the ways in which episodes have ended.
    """

    def __init__(
        self,
        section: RlaxSection,
        run_dir: Path,
        *,
        key: str = "rlax.rewards",
        note: Callable[[str], None] = log.warning,
        clocks: Clocks = clock_of,
        most_in_vain: tuple[int, int] = MOST_IN_VAIN,
        functions: Mapping[str, str] | None = None,
    ):
        self._section = section
        self._output = RewardOutput(run_dir / "logs" / "rewards.log")
        self.played = PlayCounts()
        hello: dict[str, Any] = {
            "section": section.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "key": key,
            "functions": dict(functions or {}),
        }
        startup_s, path = section.deadlines.startup_s, self._output.path
        distributor = self._distributor = Distributor(section.reward_concurrency, path, note)
        distributor.runners = [
            Runner(RewardProcess(hello, self._output, startup_s), distributor, clocks)
            for _ in range(section.reward_processes)
        ]
        names = [f"{key}.{i} ({choice.name})" for i, choice in enumerate(section.rewards)]
        environment = f"rlax.environment ({section.environment.name})"
        processes = section.reward_processes
        distributor.blame = Blame(processes, names, environment, path, note, most_in_vain)

    @property
    def replaced(self) -> int:
        """The number of replaced processes: they ended, or were killed after a deadline."""
        return self._distributor.blame.replaced

    @property
    def failing(self) -> str:
        """The newest error of a reward or an environment, if most calls fail; else empty."""
        return self._distributor.blame.failing

    @property
    def under_way(self) -> int:
        """The number of jobs that processes have now."""
        return sum(runner.load for runner in self._distributor.runners)

    def slowest(self, most: int) -> list[tuple[Job, int]]:
        """Returns the jobs that have taken longest, each with the pid of its process."""
        running = [
            (job, runner.process.pid)
            for runner in self._distributor.runners
            for job in runner.jobs
            if job.clock.runs
        ]
        return heapq.nlargest(most, running, key=lambda one: one[0].clock.used_s)

    @property
    def busy(self) -> int:
        """The number of processes that compute something, rather than wait for the policy."""
        return sum(any(job.clock.runs for job in one.jobs) for one in self._distributor.runners)

    @property
    def pids(self) -> list[int]:
        """The pids of its processes; any thread may ask."""
        return [pid for one in self._distributor.runners if (pid := one.process.pid)]

    @property
    def needs(self) -> Needs:
        """The requirements of the rewards, once the pool is started."""
        return self._distributor.runners[0].process.needs

    async def start(self) -> None:
        """Starts all processes.

        Raises:
          RlaxError: a process does not start; the reason is in the log.
        """
        await self._distributor.start()

    async def score(
        self, prompt: Prompt, episodes: Sequence[Episode], *, step: int | None = None
    ) -> list[Score | Unscored]:
        """Returns a score for each episode.

        Args:
          prompt: the prompt of the episodes.
          episodes: one job each, unless a reward sees the group.
          step: the RL step whose weights count; None: the last values of their schedules.

        Raises:
          PluginError: the prompt's metadata are not JSON.
          RlaxError: a reward process cannot be started again, or rewards keep ending it.
        """
        if not self._section.rewards:  # the environment alone pays
            return [Score(0.0) for _ in episodes]
        if not episodes:
            return []
        needs, scores, shown = self.needs, Scores(len(episodes)), prompt_to(prompt)
        weights = [choice.weight for choice in self._section.rewards]
        size = len(episodes) if needs.group else 1
        call = RewardCall(
            reward_s=self._section.deadlines.reward_s,
            weights=[last_of(one) if step is None else value_at(one, step) for one in weights],
            limit=self._section.reward_limit,
            tokens=needs.tokens,
            on_loop=needs.waits,
            scheduled=any(isinstance(one, Schedule) for one in weights),
        )
        jobs = [
            ScoreJob(prompt, shown, episodes[first : first + size], scores, first, call)
            for first in range(0, len(episodes), size)
        ]
        return await self._result(jobs, scores.all)

    async def play(self, prompt: Prompt, played: PlayedEpisode) -> Outcome | Unscored:
        """Plays an episode, whose turns ``played`` samples, and returns its outcome.

        If its process ends, and this episode is not known to have caused it, it is played once more
        from its beginning.

        Raises:
          RlaxError: see ``score``; also an error of ``played``.
        """
        job = PlayJob(
            prompt,
            played,
            self._section.deadlines.episode_s,
            self.played,
            self._section.reward_limit,
        )
        return await self._result([job], job.result)

    async def _result(self, jobs: Sequence[Job], result: Any) -> Any:
        self._distributor.add(jobs)
        try:
            return await result
        except BaseException:
            self._distributor.abandon(jobs)
            raise

    async def close(self) -> None:
        """Ends all processes, with everything they have started."""
        await self._distributor.close()
        await asyncio.to_thread(self._output.close)
