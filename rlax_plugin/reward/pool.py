"""The pool of reward processes: their start, their jobs, their end, and what replaces them.

A process has its jobs in ``RewardProcess``, and is replaced when it ends, however it ends. The pool
gives the oldest group's jobs out first, and asks ``Blame`` which of them lost its result with a
process; the others are done again in the next one.
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
from functools import partial
from pathlib import Path
from typing import Any

from rlax_plugin.base.errors import DeadlineError, RlaxError
from rlax_plugin.base.liveness.marks import forget
from rlax_plugin.base.processes.python import python_command
from rlax_plugin.base.processes.tree import kill_tree
from rlax_plugin.base.types import Episode, Prompt, Score, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.ports.environment import Outcome, PlayedEpisode
from rlax_plugin.reward.messages import ON_LOOP, Needs, Witness, line, shared
from rlax_plugin.reward.output import RewardOutput
from rlax_plugin.reward.scoring import (
    MOST_IN_VAIN,
    NO_ANSWER,
    Blame,
    Clocks,
    Job,
    PlayJob,
    Priority,
    ScoreCall,
    clock_of,
)

log = logging.getLogger("rlax.controller")

_LONGEST = 1 << 26  # bytes of a line; each job has a bound of its own below that
_END_S = 10.0  # until a process that was killed is gone
_HOW_S = 5.0  # until one that sends nothing more has ended, if it does
_GRACE_S = 0.1  # for a line that is there when its deadline has passed
_CANCEL_S = 1.0  # for a job that is cancelled to end

_STARTS = 3
"""Attempts to start a process before the run ends; a failed start is never blamed on a sample.

At the start of the run, only processes ended by a signal are tried again: code that fails or hangs
there does so every time."""

_AHEAD_S, _MOST_AHEAD = 0.005, 16
"""Bounds on the jobs sent ahead of the one that a main thread runs: their time and their number.

Their time is estimated from the slowest recent job."""
_QUICK_S = 0.001
"""A process with less work than this gets the next job as well: waking another costs more."""

# Whatever a message may be that is no answer.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


class KilledError(RlaxError):
    """A signal has ended a process: it crashed, or was killed from outside."""


class _Connection(asyncio.Protocol):
    """The lines to and from one process, which after ``close`` neither come nor go.

    Attributes:
      take: called with each line.
      ended: called once, when there are no more lines or one is too long.
      closed: True once the connection has ended.
    """

    def __init__(self, take: Callable[[bytes], None], ended: Callable[[], Any]) -> None:
        self.take, self.ended = take, ended
        self._rest = bytearray()
        self._transport: asyncio.Transport | None = None
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
        for received in lines:
            self.take(bytes(received))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.ended()

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        self.take, self.ended = (lambda data: None), (lambda: None)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class RewardProcess:
    """A reward process with its jobs. It is started again after each ``end``.

    Args:
      hello: its first message.
      pool: learns of each job that is done, and of the end of the process.

    Attributes:
      needs: requirements of its rewards.
      begun: number of jobs that it has begun since it was started.
      up: True if it accepts jobs; ``starting``: True if it is being started.
      reserved: the job that needs it alone.
    """

    def __init__(
        self,
        hello: Mapping[str, Any],
        output: RewardOutput,
        startup_s: float,
        pool: RewardPool,
        clocks: Clocks,
    ):
        self._hello, self._output, self._startup_s = hello, output, startup_s
        self._pool, self._clocks = pool, clocks
        self._process: asyncio.subprocess.Process | None = None
        self._connection = _Connection(lambda data: None, lambda: None)
        self._gone: asyncio.Task[None] | None = None
        self._witness: Witness
        self.needs = Needs()
        self.on_main: deque[Job] = deque()  # the first one runs
        self.on_loop: dict[int, Job] = {}
        self.begun = 0
        self.up = self.starting = False
        self.reserved: Job | None = None
        self._unsent: list[bytes] = []
        self._last_prompts: dict[bool, Prompt] = {}  # on the loop? -> the prompt sent last
        self._numbers = 0
        self._ending: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None  # of the first one on the main thread

    @property
    def jobs(self) -> list[Job]:
        return [*self.on_main, *self.on_loop.values()]

    @property
    def load(self) -> int:
        return len(self.on_main) + len(self.on_loop)

    @property
    def scores_on_loop(self) -> int:
        return sum(not job.plays for job in self.on_loop.values())

    @property
    def free(self) -> bool:
        return self.up and self.reserved is None

    @property
    def down(self) -> bool:
        """True if it has to be started."""
        return not self.up and not self.starting and self._ending is None

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
          RlaxError: it cannot be started, or ended by itself before it was ready.
        """
        self.end()
        ours, theirs = socket.socketpair()
        try:
            with theirs, shared() as memory:
                self._witness = Witness(memory.fileno())
                descriptors = theirs.fileno(), memory.fileno()
                process = self._process = await asyncio.create_subprocess_exec(
                    *python_command(
                        "-m", "rlax_plugin.run.programs.reward", *map(str, descriptors)
                    ),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=self._output.descriptor,
                    stderr=self._output.descriptor,
                    pass_fds=descriptors,
                    start_new_session=True,  # a Ctrl-C is the controller's to handle
                )
        except OSError as error:
            ours.close()
            raise RlaxError(f"a reward process cannot be started: {error.strerror}") from error
        self._gone = asyncio.ensure_future(_end_with_it(process, Path(self._hello["run_dir"])))
        loop = asyncio.get_running_loop()
        first: asyncio.Future[bytes] = loop.create_future()
        connection = self._connection = _Connection(
            lambda data: None if first.done() else first.set_result(data), first.cancel
        )
        await loop.create_unix_connection(lambda: connection, sock=ours)
        connection.send(line(self._hello))
        try:
            await asyncio.wait({first}, timeout=self._startup_s)
            if not first.done():
                raise DeadlineError(
                    "starting a reward process", self._startup_s, "rlax.deadlines.startup_s"
                )
            self.needs = await self._answered_needs(first)
        except BaseException:
            self.end()
            raise
        self.begun, self.up = 0, True
        self._last_prompts.clear()
        connection.take, connection.ended = self._take, self._ended
        if connection.closed:
            self._ended()

    async def _answered_needs(self, first: asyncio.Future[bytes]) -> Needs:
        ending, kind = NO_ANSWER, RlaxError
        if first.cancelled():
            process = self._process
            ending = await self._how_it_ended()
            if process is not None and (process.returncode or 0) < 0:
                kind = KilledError
        else:
            with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
                answer = json.loads(first.result())
                return Needs(*(bool(answer[name]) for name in ("group", "tokens", "waits")))
        raise kind(f"a reward process {ending} before it had started")

    async def _how_it_ended(self) -> str:
        """Describes in words how the process ended; kills it if it still runs."""
        process = self._process
        if process is None:
            return "was ended"  # by the end of the run
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _HOW_S)
        if (code := process.returncode) is None:
            return NO_ANSWER
        if code >= 0:
            return f"ended with exit code {code}"
        names = {int(number): number.name for number in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"

    def give(self, job: Job) -> None:
        """Gives it a job; ``flush`` sends it."""
        self._numbers += 1
        number, connection = self._numbers, self._connection

        # An answer of the policy may come when the process that asked has ended. The next one does
        # not know the question, and while it starts, it understands only its first message.
        def send(message: Mapping[str, Any]) -> None:
            connection.send(ON_LOOP + line(message))

        job.begin(number, self._clocks(job, lambda: self._expired(job)), send)
        with_prompt = self._last_prompts.get(job.on_loop) is not job.prompt
        data = line(job.message(with_prompt=with_prompt))
        if not job.plays:
            self._last_prompts[job.on_loop] = job.prompt
        if job.on_loop:
            self.on_loop[number] = job
            self._begins(job)
            self._unsent.append(ON_LOOP + data)
        else:
            self.on_main.append(job)
            if len(self.on_main) == 1:
                self._begins(job)
            self._unsent.append(data)

    def flush(self) -> None:
        if self._unsent:
            self._connection.send(b"".join(self._unsent))
            self._unsent.clear()

    def _begins(self, job: Job) -> None:
        self.begun += 1
        job.clock.go(timer=job.on_loop)
        if not job.on_loop and self._watch is None:
            # One timer for all that follow one another: most of them end long before it.
            self._watch = _later(job.clock.left_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if self.on_main:
            job = self.on_main[0]
            if job.clock.left_s:
                self._watch = _later(job.clock.left_s, self._look)
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
                    job.fail(Unscored(str(job.late), job.over))
                self._pool.done(job, self)
            elif job.take(message, len(data)):
                self._finish(job)
                self._pool.done(job, self)
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
        _later(_GRACE_S, partial(self._is_late, job, job.number))

    def _is_late(self, job: Job, number: int) -> None:
        if job not in self.jobs or job.number != number or job.clock.left_s or job.late:
            return
        self._locate(job)
        job.late = self._pool.blame.late(job)
        if job.on_loop:
            self.cancel(job)
        else:
            self._end_of(job.late, [job])

    def cancel(self, job: Job) -> None:
        """Cancels a job on the event loop, and ends the process if that does not end the job."""
        self._connection.send(ON_LOOP + line({"job": job.number, "cancel": True}))
        _later(_CANCEL_S, partial(self._not_cancelled, job, job.number))

    def _not_cancelled(self, job: Job, number: int) -> None:
        if self.on_loop.get(number) is not job:
            return
        culprit = job
        if not job.cancelling:  # the loop is blocked, perhaps by another one, in its own good time
            culprit = self.on_loop.get(self._witness.job, job)
            if culprit is not job and culprit.clock.runs and culprit.clock.left_s:
                wait_s = min(culprit.clock.left_s, _CANCEL_S)
                _later(wait_s, partial(self._not_cancelled, job, number))
                return
        culprit.late = culprit.late or self._pool.blame.late(culprit)
        self._end_of(culprit.late, [culprit])

    def _ended(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end_by_itself())

    async def _end_by_itself(self) -> None:
        self.up = False
        for job in self.jobs:
            job.clock.end()
        ending = await self._how_it_ended()
        self._ending = None
        self._end_of(ending)

    def _end_of(self, how: str | DeadlineError, ended: Sequence[Job] | None = None) -> None:
        """Ends the process because of ``ended``; None: because of what it executes now."""
        if ended is None:
            ended = self._executing()
        self.end()
        self._pool.gone(self, how, ended)

    def _executing(self) -> list[Job]:
        """Returns the jobs that run at this moment if they are known; else all that have begun."""
        jobs = [self.on_main[0]] if self.on_main else []
        if (stepping := self.on_loop.get(self._witness.job)) is not None:
            jobs.append(stepping)
        for job in jobs:
            self._locate(job)
        return jobs or list(self.on_loop.values())

    def _locate(self, job: Job) -> None:
        """Stores which reward a job on the main thread is at; others have told it."""
        if not job.on_loop:
            job.reward = self._witness.reward

    def end(self) -> None:
        """Kills the process and all that it has started, whatever it is doing; keeps its jobs."""
        self.up, self.reserved = False, None
        self._unsent.clear()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        for job in self.jobs:
            job.clock.end()
        self._connection.close()
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            kill_tree(process.pid)  # else ``_end_with_it`` does; its pid may be another's

    async def wait(self) -> None:
        """Waits until a killed process is gone, for at most 10 s."""
        if self._gone is not None:
            await asyncio.wait({self._gone}, timeout=_END_S)

    def drop(self, job: Job) -> None:
        """Removes one job that has ended with the process."""
        if job in self.on_main:
            self.on_main.remove(job)
        self.on_loop.pop(job.number, None)

    def clear(self) -> list[Job]:
        """Removes and returns all jobs."""
        jobs = self.jobs
        self.on_main.clear()
        self.on_loop.clear()
        return jobs


def _later(wait_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(wait_s, call)


async def _end_with_it(process: asyncio.subprocess.Process, run_dir: Path) -> None:
    """Waits for the process to end, and then kills the processes that it has started."""
    await process.wait()
    kill_tree(process.pid, gone=True)
    forget(run_dir, process.pid)


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
      maxtext: MaxText's own keys, such as that of the tokenizer which an environment encodes with.
      key_of: key below ``rlax`` -> the key that sets it for this pool, for messages.

    Attributes:
      blame: decides which jobs have ended processes.
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
        maxtext: Mapping[str, Any] | None = None,
        key_of: Callable[[str], str] = "rlax.{}".format,
    ):
        self._section, self._note, self._key_of = section, note, key_of
        output = self._output = RewardOutput(run_dir / "logs" / "rewards.log")
        hello = {
            "section": section.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "key": key,
            "environment": key_of("environment"),
            "functions": dict(functions or {}),
            "maxtext": dict(maxtext or {}),
        }
        startup_s, count = section.deadlines.startup_s, section.reward_processes
        self._processes = [
            RewardProcess(hello, output, startup_s, self, clocks) for _ in range(count)
        ]
        names = [f"{key}.{i} ({choice.metric_name})" for i, choice in enumerate(section.rewards)]
        environment = f"{key_of('environment')} ({section.environment.name})"
        self.blame = Blame(count, names, environment, output.path, note, most_in_vain)
        self._waiting: list[Job] = []  # a heap
        self._plays: deque[Job] = deque()
        self._alone: deque[Job] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._orders = itertools.count()
        self._pump_is_due = False
        self._failure: RlaxError | None = None
        self._recent_s: float | None = None  # the slowest job on a main thread of late

    @property
    def replaced(self) -> int:
        """The number of replaced processes: they ended, or were killed after a deadline."""
        return self.blame.replaced

    @property
    def failing(self) -> str:
        """The newest error of a reward or an environment, if most calls fail; else empty."""
        return self.blame.failing

    @property
    def under_way(self) -> int:
        """The number of jobs that processes have now."""
        return sum(process.load for process in self._processes)

    def slowest(self, most: int) -> list[tuple[Job, int]]:
        """Returns the jobs that have taken longest, each with the pid of its process."""
        running = [
            (job, process.pid)
            for process in self._processes
            for job in process.jobs
            if job.clock.runs
        ]
        return heapq.nlargest(most, running, key=lambda pair: pair[0].clock.used_s)

    @property
    def busy(self) -> int:
        """The number of processes that compute something, rather than wait for the policy."""
        return sum(any(job.clock.runs for job in process.jobs) for process in self._processes)

    @property
    def pids(self) -> list[int]:
        """The pids of its processes; any thread may ask."""
        return [pid for process in self._processes if (pid := process.pid)]

    @property
    def needs(self) -> Needs:
        """The requirements of the rewards, once the pool is started."""
        return self._processes[0].needs

    async def start(self) -> None:
        """Starts all processes.

        Raises:
          RlaxError: a process does not start; the reason is in the log.
        """
        # All of them to their end: ``close`` does not know of one that is only being started.
        starts = (self._started(process, KilledError) for process in self._processes)
        for error in await asyncio.gather(*starts, return_exceptions=True):
            if error is not None:
                raise error

    async def _started(self, process: RewardProcess, retried: type[RlaxError]) -> None:
        """Starts a process, again after errors of a class.

        Raises:
          RlaxError: the last error, with the place of the log.
        """
        for left in reversed(range(_STARTS)):
            try:
                return await process.start()
            except RlaxError as error:
                if self._failure is not None:
                    return
                if not left or not isinstance(error, retried):
                    place = self._output.path
                    reason = f"a reward process did not start; see {place} ({error})"
                    raise RlaxError(reason) from error
                self._note(f"{error}; it is started again")

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
        call = ScoreCall(prompt, episodes, self._section, self.needs, step)
        return await self._result(call.jobs(), call.all)

    async def play(self, prompt: Prompt, played: PlayedEpisode) -> Outcome | Unscored:
        """Plays an episode, whose turns ``played`` samples, and returns its outcome.

        If its process ends, and this episode is not known to have caused it, it is played once more
        from its beginning.

        Raises:
          RlaxError: see ``score``; also an error of ``played``.
        """
        episode_s, limit = self._section.deadlines.episode_s, self._section.reward_limit
        job = PlayJob(prompt, played, episode_s, limit)
        return await self._result([job], job.result)

    async def _result(self, jobs: Sequence[Job], result: asyncio.Future[Any]) -> Any:
        if self._failure is not None:
            raise self._failure
        priority = Priority(next(self._orders))
        for place, job in enumerate(jobs):
            job.priority, job.place = priority, place
            job.limit_key = self._key_of(job.limit_key.removeprefix("rlax."))
            self._enqueue(job)
        self._pump()
        try:
            return await result
        except BaseException:
            self._abandon(jobs)
            raise

    def _enqueue(self, job: Job) -> None:
        if job.plays:
            self._plays.append(job)
        elif job.alone:
            self._alone.append(job)
        else:
            heapq.heappush(self._waiting, job)

    def _abandon(self, jobs: Sequence[Job]) -> None:
        """Cancels jobs whose results are no longer wanted."""
        for job in jobs:
            job.abandon()
        for process in self._processes:
            if process.on_main and process.on_main[0] in jobs:
                # It may be at this job still, which must not cost the next one.
                process.end()
                self._requeue(process)
                continue
            for job in list(process.on_loop.values()):
                if job in jobs:
                    process.cancel(job)
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Gives waiting jobs to processes, and starts processes if there are more jobs."""
        self._pump_is_due = False
        if self._failure is not None:
            return
        wanted = self._give_alone()
        while self._waiting:
            job = self._waiting[0]
            process = None if job.abandoned else self._next_process(job.on_loop)
            if process is None and not job.abandoned:
                wanted += len(self._waiting)
                break
            heapq.heappop(self._waiting)
            if process is not None:
                wanted += process.load > 0
                process.give(job)
        while self._plays:
            free = [process for process in self._processes if process.free]
            if not free:
                wanted += len(self._plays)
                break
            if not (job := self._plays.popleft()).abandoned:
                process = min(free, key=lambda process: process.load)
                wanted += process.load > 0
                process.give(job)
        for process in self._processes:
            process.flush()
            if wanted > 0 and process.down:
                wanted -= 1
                process.starting = True
                task = asyncio.ensure_future(self._replaced(process))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)

    def _give_alone(self) -> int:
        """Gives each job that must run alone its own process; returns how many still wait."""
        waiting = 0
        for job in list(self._alone):
            if job.abandoned:
                self._alone.remove(job)
                continue
            process = next((p for p in self._processes if p.reserved is job), None)
            if process is None:
                free = [p for p in self._processes if p.free]
                process = min(free, key=lambda p: p.load, default=None)
            if process is not None:
                process.reserved = job
            if process is None or process.load:
                waiting += 1
                continue
            self._alone.remove(job)
            process.give(job)
        return waiting

    def _next_process(self, on_loop: bool) -> RewardProcess | None:
        """Returns the process that should get the next sample; None if there is none."""
        recent_s = self._recent_s
        ahead = 1 if recent_s is None else min(_MOST_AHEAD, 1 + int(_AHEAD_S / max(recent_s, 1e-6)))
        best, least = None, self._section.reward_concurrency if on_loop else ahead
        for process in self._processes:
            if process.up and process.reserved is None:
                load = process.scores_on_loop if on_loop else len(process.on_main)
                if load < least:
                    best, least = process, load
                    quick = load * (recent_s or 0.0) < _QUICK_S and (recent_s or not load)
                    if not on_loop and quick:
                        break
        return best

    async def _replaced(self, process: RewardProcess) -> None:
        try:
            await self._started(process, RlaxError)
        except RlaxError as error:
            return self._fail(error)
        finally:
            process.starting = False
        self._pump()

    def done(self, job: Job, process: RewardProcess) -> None:
        """Handles a job that has its result."""
        self.blame.done(job)
        if not job.on_loop:
            self._recent_s = max(job.clock.used_s, 0.9 * (self._recent_s or 0.0))
        if process.reserved is job:
            process.reserved = None
        self._pump_soon()

    def gone(self, process: RewardProcess, how: str | DeadlineError, ended: Sequence[Job]) -> None:
        """Handles a process that has ended, by itself as ``how`` says, or because a job was late.

        Args:
          how: a description of its end, or the error of the late job.
          ended: the jobs that may have caused it; the others are still in ``process.jobs``.
        """
        if self._failure is not None:
            return
        try:
            verdicts = self.blame.verdicts(how, ended, process.begun)
        except RlaxError as error:
            self._fail(error)
            return
        for job, failed in verdicts.items():
            process.drop(job)
            job.fail(failed)
        if ended:  # a group that ends all processes holds up no other
            ended[0].priority.order = next(self._orders)
            heapq.heapify(self._waiting)
        self._requeue(process)
        self._pump_soon()

    def _requeue(self, process: RewardProcess) -> None:
        """Puts the jobs of a process that is gone back into the queue."""
        for job in process.clear():
            if not job.abandoned:
                self._enqueue(job)

    def _fail(self, error: RlaxError) -> None:
        """Ends every job because the run is over."""
        self._failure = error
        running = (job for process in self._processes for job in process.jobs)
        for job in [*self._waiting, *self._plays, *self._alone, *running]:
            job.fail_run(error)

    async def close(self) -> None:
        """Ends all processes, with everything they have started."""
        self._fail(RlaxError("the pool of reward processes is closed"))
        for task in self._starting:
            task.cancel()
        if self._starting:
            await asyncio.wait(self._starting)
        for process in self._processes:
            process.end()
        await asyncio.gather(*(process.wait() for process in self._processes))
        await asyncio.to_thread(self._output.close)
