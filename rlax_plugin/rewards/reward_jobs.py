"""The jobs of reward processes: scoring a sample or a group, and playing an episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlax_plugin.errors import DeadlineError
from rlax_plugin.rewards.messages import (
    LONGEST,
    episode_to,
    lengths_of,
    score_from,
)
from rlax_plugin.text.harmless import one_line
from rlax_plugin.types import Episode, Prompt, Score, Unscored

LONGEST_ERROR = 1200  # characters; the process has cut it already
Send = Callable[[Mapping[str, Any]], None]


class Clock:
    """The time that a job may take; it stops while the job waits for something else.

    Args:
      limit_s: the time.
      expired: called when the time is over.
    """

    def __init__(self, limit_s: float, expired: Callable[[], None]):
        self._limit_s, self._expired = limit_s, expired
        self._used_s = 0.0
        self._since_s: float | None = None
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def runs(self) -> bool:
        return self._since_s is not None

    @property
    def used_s(self) -> float:
        return self._used_s + (0.0 if self._since_s is None else time.monotonic() - self._since_s)

    @property
    def left_s(self) -> float:
        return max(0.0, self._limit_s - self.used_s)

    def go(self, *, timer: bool = True) -> None:
        """Continues, unless it was ended; ``expired`` is called only with a timer."""
        if self._since_s is None and not self._over:
            self._since_s = time.monotonic()
            if timer:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(self.left_s, self._expired)

    def stop(self) -> None:
        if self._since_s is not None:
            self._used_s, self._since_s = self.used_s, None
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """Stops the clock for good, because the process is gone."""
        self.stop()
        self._over = True


class Priority:
    """The order of a group, which its jobs share.

    Attributes:
      order: the lowest one is next.
    """

    def __init__(self, order: int):
        self.order = order


class Job:
    """A task that one process does for one prompt.

    Attributes:
      prompt: the prompt.
      on_loop: True if it runs on the process's event loop, beside others.
      limit_s: the time that it may take: ``samples`` times the value of the key ``limit_key``.
      number: number of this attempt; 0 while it waits for a process.
      clock: clock of this attempt.
      reward: number of the reward that it calls on the event loop.
      deaths: number of processes that have ended while it ran there.
      alone: True if it needs a process to itself, because one has ended and several jobs may have
        caused it.
      failure: the reason why it has no result; empty while there is none.
      late: error with which it is being cancelled.
      cancelling: True once the process has confirmed that it is being cancelled.
      abandoned: True if its result is no longer wanted.
      priority: priority of its group.
      place: its place in the group.
    """

    limit_key = "rlax.deadlines.reward_s"
    samples = 1
    plays = False

    def __init__(self, prompt: Prompt, limit_s: float, *, on_loop: bool):
        self.prompt, self.limit_s, self.on_loop = prompt, limit_s, on_loop
        self.clock = Clock(limit_s, lambda: None)
        self.priority, self.place = Priority(0), 0
        self.deaths = self.number = 0
        self.alone = self.abandoned = False
        self.failure = ""
        self.begin(0, self.clock, lambda message: None)

    def begin(self, number: int, clock: Clock, send: Send) -> None:
        """Begins a new attempt in a process."""
        self.clock.stop()
        self.number, self.clock, self._send = number, clock, send
        self.reward = 0
        self.late: DeadlineError | None = None
        self.cancelling = False

    def __lt__(self, other: Job) -> bool:
        return (self.priority.order, self.place) < (other.priority.order, other.place)

    def message(self, *, with_prompt: bool) -> dict[str, Any]:
        """Returns the message that tells the process to do the job."""
        raise NotImplementedError

    def take(self, message: Mapping[str, Any], size: int) -> bool:
        """Handles a message of the process; returns True if the job is done.

        Raises:
          ValueError, TypeError, LookupError: it is not a valid answer.
        """
        raise NotImplementedError

    def abandon(self) -> None:
        """Marks the job's result as no longer wanted."""
        self.abandoned = True

    def fail(self, reason: str) -> None:
        """Ends the job without a result, for a reason in one line."""
        self.failure = reason

    def fail_run(self, error: Exception) -> None:
        """Ends the job because the run ends."""
        raise NotImplementedError

    @property
    def succeeded(self) -> bool:
        """True if it has a result that is not a failure."""
        raise NotImplementedError


Clocks = Callable[[Job, Callable[[], None]], Clock]
"""Makes the clock of one attempt at a job, given the callback for the end of the time."""


def clock_of(job: Job, expired: Callable[[], None]) -> Clock:
    """Returns a clock that uses this machine's time."""
    return Clock(job.limit_s, expired)


class Scores:
    """The scores of one group, job by job.

    Attributes:
      all: future that is done once each episode has a score, or a reason why it has none.
    """

    def __init__(self, episodes: int):
        self._found: list[Score | Unscored | None] = [None] * episodes
        self._left = episodes
        self.all: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def put(self, first: int, scores: Sequence[Score | Unscored]) -> None:
        self._found[first : first + len(scores)] = scores
        self._left -= len(scores)
        if not self._left and not self.all.done():
            self.all.set_result(self._found)


@dataclass(frozen=True, slots=True)
class RewardCall:
    """The settings for calling the rewards of a config.

    Attributes:
      reward_s: the time for one episode.
      weights: of the rewards.
      scheduled: True if weights depend on the step, so that the process has to be told them.
      limit: ``reward_limit`` of ``RlaxSection``.
      tokens: True if a reward sees tokens.
      on_loop: see ``Job``.
    """

    reward_s: float
    weights: Sequence[float]
    limit: float
    tokens: bool
    on_loop: bool
    scheduled: bool = False


class ScoreJob(Job):
    """Scores some episodes of a prompt.

    Args:
      prompt: the prompt.
      shown: ``prompt_to`` of the prompt.
      episodes: the episodes.
      scores: receives the scores, from place ``first`` on.
      first: place of the first episode in the group.
      call: settings for calling the rewards.
    """

    def __init__(
        self,
        prompt: Prompt,
        shown: Mapping[str, Any],
        episodes: Sequence[Episode],
        scores: Scores,
        first: int,
        call: RewardCall,
    ):
        super().__init__(prompt, call.reward_s * len(episodes), on_loop=call.on_loop)
        self._episodes, self.scores, self._first = episodes, scores, first
        self.samples = len(episodes)
        self._shown, self._call = shown, call
        self._lengths = [lengths_of(episode) for episode in episodes]
        self._succeeded = False

    def message(self, *, with_prompt: bool) -> dict[str, Any]:
        episodes = [episode_to(one, self.prompt, self._call.tokens) for one in self._episodes]
        message: dict[str, Any] = {"job": self.number, "episodes": episodes}
        if self._call.scheduled:
            message["weights"] = list(self._call.weights)
        return message | {"prompt": self._shown} if with_prompt else message

    def take(self, message: Mapping[str, Any], size: int) -> bool:
        found: list[Score | Unscored] = []
        for lengths, said in zip(self._lengths, message["scores"], strict=True):
            size -= LONGEST + 16 * sum(lengths)
            if "error" in said:
                found.append(Unscored(one_line(said["error"], LONGEST_ERROR)))
            else:
                found.append(score_from(said, self._call.weights, lengths, self._call.limit))
        if size > 0:
            raise ValueError("an answer is too long")
        reasons = [one.reason for one in found if isinstance(one, Unscored)]
        self._succeeded = len(reasons) < len(found)
        self.failure = "" if self._succeeded else reasons[-1]
        self.scores.put(self._first, found)
        return True

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self.scores.put(self._first, [Unscored(reason)] * len(self._episodes))

    def fail_run(self, error: Exception) -> None:
        if not self.scores.all.done():
            self.scores.all.set_exception(error)

    @property
    def succeeded(self) -> bool:
        return self._succeeded
