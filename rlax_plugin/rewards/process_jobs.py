"""Manages one reward process and its jobs: messages, time limits, and the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlax_plugin.errors import DeadlineError
from rlax_plugin.rewards.handle import NO_ANSWER, RewardProcess
from rlax_plugin.rewards.messages import ON_LOOP, line
from rlax_plugin.rewards.reward_jobs import Clocks, Job, Send, clock_of

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
