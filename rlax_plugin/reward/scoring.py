"""The jobs of reward processes, as the trainer sees them, and who is to blame for ended processes.

A job scores a sample or a group, or plays an episode. Its clock measures its own time only.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import DeadlineError, RlaxError
from rlax_plugin.base.text.harmless import one_line
from rlax_plugin.base.types import Episode, Prompt, Score, Unscored
from rlax_plugin.config import RlaxSection, Schedule, last_of, value_at
from rlax_plugin.ports.environment import EpisodeLimit, Given, Outcome, PlayedEpisode
from rlax_plugin.reward.messages import (
    LONGEST,
    Needs,
    answer_to,
    episode_to,
    given_from,
    lengths_of,
    outcome_from,
    prompt_to,
    sample_options_from,
    score_from,
    unscored_from,
)

NO_ANSWER = "sent something that is not an answer"
Send = Callable[[Mapping[str, Any]], None]


class Clock:
    """The time that a job may take; it stops while the job waits for something else.

    Args:
      limit_s: the time.
      expired: called when the time is over.
    """

    def __init__(self, limit_s: float, expired: Callable[[], None] = lambda: None):
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
      limit_s: the time that it may take: ``samples`` times the value of the key ``limit_key``;
        ``over`` is its ending if it takes longer.
      number: number of this attempt; 0 while it waits for a process.
      clock: clock of this attempt.
      reward: number of the reward that it calls, as the untrusted process says.
      deaths: number of processes that have ended while it ran there.
      alone: True if it needs a process to itself, because one has ended and several jobs may have
        caused it.
      failure: the reason why it has no result, after its ending; empty while there is none.
      succeeded: True if it has a result that is not a failure.
      late: error with which it is being cancelled.
      cancelling: True once the process has confirmed that it is being cancelled.
      abandoned: True if its result is no longer wanted.
      priority: priority of its group.
      place: its place in the group.
    """

    limit_key, over = "rlax.deadlines.reward_s", Ending.REWARD_LATE
    samples = 1
    plays = False

    def __init__(self, prompt: Prompt, limit_s: float, *, on_loop: bool):
        self.prompt, self.limit_s, self.on_loop = prompt, limit_s, on_loop
        self.clock = Clock(limit_s)
        self.priority, self.place = Priority(0), 0
        self.deaths = self.number = 0
        self.alone = self.abandoned = False
        self.failure, self.succeeded = "", False
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

    def fail(self, failed: Unscored) -> None:
        """Ends the job without a result, for a reason in one line."""
        self.failure = failed.shown

    def fail_run(self, error: Exception) -> None:
        """Ends the job because the run ends."""
        raise NotImplementedError


Clocks = Callable[[Job, Callable[[], None]], Clock]
"""Makes the clock of one attempt at a job, given the callback for the end of the time."""


def clock_of(job: Job, expired: Callable[[], None]) -> Clock:
    """Returns a clock that uses this machine's time."""
    return Clock(job.limit_s, expired)


class ScoreCall:
    """The scoring of some episodes of a prompt, in one job each, or in one job for all of them.

    Args:
      section: the config.
      needs: requirements of the rewards.
      step: see ``RewardPool.score``.

    Attributes:
      shown: ``prompt_to`` of the prompt.
      weights: of the rewards.
      scheduled: True if weights depend on the step, so that the process has to be told them.
      all: future that is done once each episode has a score, or a reason why it has none.
    """

    def __init__(
        self,
        prompt: Prompt,
        episodes: Sequence[Episode],
        section: RlaxSection,
        needs: Needs,
        step: int | None,
    ):
        self.prompt, self.shown = prompt, prompt_to(prompt)
        self.section, self.needs = section, needs
        weights = [choice.weight for choice in section.rewards]
        self.weights = [last_of(w) if step is None else value_at(w, step) for w in weights]
        self.scheduled = any(isinstance(weight, Schedule) for weight in weights)
        self._episodes = episodes
        self._results: list[Score | Unscored | None] = [None] * len(episodes)
        self._left = len(episodes)
        self.all: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

    def jobs(self) -> list[ScoreJob]:
        size = len(self._episodes) if self.needs.group else 1
        starts = range(0, len(self._episodes), size)
        return [ScoreJob(self, first, self._episodes[first : first + size]) for first in starts]

    def put(self, first: int, scores: Sequence[Score | Unscored]) -> None:
        """Stores the scores of the episodes from place ``first`` on."""
        self._results[first : first + len(scores)] = scores
        self._left -= len(scores)
        if not self._left and not self.all.done():
            self.all.set_result(self._results)


class ScoreJob(Job):
    """Scores some episodes of a call, of which the first one has the place ``first``."""

    def __init__(self, call: ScoreCall, first: int, episodes: Sequence[Episode]):
        limit_s = call.section.deadlines.reward_s * len(episodes)
        super().__init__(call.prompt, limit_s, on_loop=call.needs.waits)
        self._call, self._first, self._episodes = call, first, episodes
        self.samples = len(episodes)
        self._lengths = [lengths_of(episode) for episode in episodes]

    def message(self, *, with_prompt: bool) -> dict[str, Any]:
        episodes = [episode_to(e, self.prompt, self._call.needs.tokens) for e in self._episodes]
        message: dict[str, Any] = {"job": self.number, "episodes": episodes}
        if self._call.scheduled:
            message["weights"] = self._call.weights
        return message | {"prompt": self._call.shown} if with_prompt else message

    def take(self, message: Mapping[str, Any], size: int) -> bool:
        call, limit = self._call, self._call.section.reward_limit
        results: list[Score | Unscored] = []
        for lengths, answer in zip(self._lengths, message["scores"], strict=True):
            size -= LONGEST + 16 * sum(lengths)
            if "error" in answer:
                results.append(unscored_from(answer))
            else:
                results.append(score_from(answer, call.weights, lengths, limit))
        if size > 0:
            raise ValueError("an answer is too long")
        reasons = [result.shown for result in results if isinstance(result, Unscored)]
        self.succeeded = len(reasons) < len(results)
        self.failure = "" if self.succeeded else reasons[-1]
        call.put(self._first, results)
        return True

    def fail(self, failed: Unscored) -> None:
        super().fail(failed)
        self._call.put(self._first, [failed] * len(self._episodes))

    def fail_run(self, error: Exception) -> None:
        if not self._call.all.done():
            self._call.all.set_exception(error)


_MOST_QUESTIONS = 64  # of one episode at a time


class PlayJob(Job):
    """Plays one episode.

    Attributes:
      result: future with the outcome, or with the reason why there is none.
    """

    limit_key, over = "rlax.deadlines.episode_s", Ending.ENVIRONMENT_LATE
    plays = True

    def __init__(
        self, prompt: Prompt, played: PlayedEpisode, limit_s: float, reward_limit: float = math.inf
    ):
        self._reward_limit = reward_limit
        self._questions: set[asyncio.Task[None]] = set()
        self._played = played
        self._turns = self.number = 0
        self._shown = prompt_to(prompt)
        super().__init__(prompt, limit_s, on_loop=True)
        self.result: asyncio.Future[Outcome | Unscored] = asyncio.get_running_loop().create_future()

    def begin(self, number: int, clock: Clock, send: Send) -> None:
        self._stop_questions()
        if self.number and number:
            self._played.begin_again()
        self._turns = int(self._played.answer is not None)
        super().begin(number, clock, send)

    def _stop_questions(self) -> None:
        for question in self._questions:
            question.cancel()
        self._questions.clear()

    def message(self, *, with_prompt: bool) -> dict[str, Any]:
        answer = self._played.answer
        shown = None if answer is None else answer_to(answer)
        play = {"prompt": self._shown, "answer": shown, **self._state()}
        return {"job": self.number, "play": play}

    def _state(self) -> dict[str, Any]:
        played = self._played
        return {"turns_left": played.turns_left, "tokens_left": played.tokens_left}

    def take(self, message: Mapping[str, Any], size: int) -> bool:
        if "outcome" in message:
            outcome = outcome_from(message["outcome"], self._reward_limit)
            if (paid := len(outcome.rewards)) in (0, self._turns):
                self._end(outcome)
            else:  # only this process knows which answers came before the outcome
                reason = (
                    f"play returned {paid} rewards for {self._turns} turns, and must return one "
                    "for each turn, or none"
                )
                self.fail(Unscored(reason, Ending.ENVIRONMENT_FAILED))
        elif "error" in message:
            self.fail(unscored_from(message))
        elif size > LONGEST or len(self._questions) >= _MOST_QUESTIONS:
            raise ValueError("that is too much")
        elif self.late is None and not self.result.done():
            self._ask(message)
            return False
        return "call" not in message

    def _ask(self, message: Mapping[str, Any]) -> None:
        """Answers a question of the environment; the policy's time is not the environment's."""
        call = int(message["call"])
        if "sample" in message:
            given, trajectory = given_from(message["sample"]), int(message["trajectory"])
            ask = partial(self._sampled, given, trajectory, **sample_options_from(message))
        else:
            ask = partial(self._begun, given_from(message["begin"]))
        question = asyncio.ensure_future(self._answer(call, ask, self._send))
        self._questions.add(question)
        self.clock.stop()
        question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[None]) -> None:
        if question in self._questions:  # else it belongs to an earlier attempt
            self._questions.discard(question)
            if not self._questions and not self.result.done():
                self.clock.go()

    async def _sampled(self, given: Given, trajectory: int, **options: Any) -> dict[str, Any]:
        answer = await self._played.sample(given, trajectory, **options)
        self._turns += 1
        return {**self._state(), "answer": answer_to(answer)}

    async def _begun(self, context: Given) -> dict[str, Any]:
        return {"trajectory": self._played.begin(context)}

    async def _answer(
        self, call: int, ask: Callable[[], Awaitable[dict[str, Any]]], send: Send
    ) -> None:
        try:
            answer = await ask()
        except EpisodeLimit as limit:
            answer = {"limit": one_line(str(limit))}
        except ValueError as error:
            answer = {"wrong": one_line(str(error))}
        except Exception as error:  # noqa: BLE001  it is raised where ``play`` is awaited
            self.fail_run(error)
            return
        send({"job": self.number, "call": call, **answer})

    def abandon(self) -> None:
        super().abandon()
        self._stop_questions()  # what the policy would answer is not wanted either

    def fail(self, failed: Unscored) -> None:
        super().fail(failed)
        self._end(failed)

    def fail_run(self, error: Exception) -> None:
        self._stop_questions()
        if not self.result.done():
            self.result.set_exception(error)

    def _end(self, result: Outcome | Unscored) -> None:
        self._stop_questions()
        if self.result.done():
            return
        self.succeeded = isinstance(result, Outcome)
        self.result.set_result(result)


MOST_IN_VAIN = 8, 40  # see ``RewardPool``
_PROMPTS_IN_VAIN = 3  # that it must concern, as a single one may be at fault
_LATELY = 64  # calls whose failures are counted


class Blame:
    """Decides which jobs are to blame for ended processes.

    Args:
      processes: number of processes.
      names: names of the rewards, for messages.
      environment: name of the environment, for messages.
      log: the file with the output of rewards, for messages.
      note, most_in_vain: see ``RewardPool``.

    Attributes:
      replaced: see ``RewardPool``.
    """

    def __init__(
        self,
        processes: int,
        names: Sequence[str],
        environment: str,
        log: Path,
        note: Callable[[str], None],
        most_in_vain: tuple[int, int] = MOST_IN_VAIN,
    ):
        self._most_in_vain = most_in_vain
        self._processes, self._names, self._environment = processes, names, environment
        self._log, self._note = log, note
        self._slowest_s = 0.0  # of the answers so far
        self._succeeded = False
        self._in_vain: list[str] = []  # prompts whose jobs ended processes since the last result
        self._lately = deque[tuple[str, str]](maxlen=_LATELY)  # prompt, why it failed or ""
        self.replaced = 0

    def done(self, job: Job) -> None:
        """Records that a job has ended normally."""
        if job.late is None and not job.abandoned:
            self._slowest_s = max(self._slowest_s, job.clock.used_s)
        if job.succeeded:
            self._succeeded = True
            self._in_vain.clear()
        if job.failure or job.succeeded:
            self._lately.append((job.prompt.id, job.failure))

    @property
    def failing(self) -> str:
        """The newest error, if most of the last jobs failed, of several prompts; else empty.

        A process that ends takes seconds to replace, so that it is minutes until most of the last
        jobs have ended one. If there was no result in between, the jobs before do not count.
        """
        failed = [(prompt, failure) for prompt, failure in self._lately if failure]
        several = len({prompt for prompt, _ in failed}) >= _PROMPTS_IN_VAIN
        most = several and 2 * len(failed) > len(self._lately)
        in_vain = len(set(self._in_vain)) >= _PROMPTS_IN_VAIN
        return failed[-1][1] if most or in_vain else ""

    def late(self, job: Job) -> DeadlineError:
        """Returns the error for a job that has exceeded its time limit."""
        slowest = f"{self._slowest_s:.2g} s" if self._slowest_s else "none"
        of = f" for the {job.samples} samples of a group" if job.samples > 1 else ""
        name = f"{self._name(job)}{of} (slowest answer so far: {slowest})"
        return DeadlineError(name, job.limit_s, job.limit_key)

    def _name(self, job: Job) -> str:
        if job.plays:
            return self._environment
        return self._names[max(0, min(job.reward, len(self._names) - 1))]

    def verdicts(
        self, how: str | DeadlineError, ended: Sequence[Job], begun: int
    ) -> Mapping[Job, Unscored]:
        """Returns the jobs that fail, with the reason, and marks others as suspects.

        A job is to blame if nothing else can have ended the process: if the process was started for
        this job, or if it happens again to the same job.

        Args:
          how: a description of the end of a process, or the error of a late job.
          ended: the jobs that may have caused it.
          begun: number of jobs that the process has begun.

        Raises:
          RlaxError: processes keep ending without any result.
        """
        verdicts: dict[Job, Unscored] = {}
        description = self._description(how, ended)
        if isinstance(how, DeadlineError):
            verdicts = {job: Unscored(description, job.over) for job in ended}
            if ended[0].abandoned:
                return verdicts
        else:
            for job in ended:
                if job.deaths or begun == 1:
                    verdicts[job] = Unscored(description, Ending.PROCESS_ENDED)
                job.deaths += 1
                job.alone = job.alone or len(ended) > 1
        on = f", on prompt {ended[0].prompt.id}" if ended else ""
        self._replace(f"{description}{on}")
        if ended:
            ending = ended[0].over if isinstance(how, DeadlineError) else Ending.PROCESS_ENDED
            self._count(ended[0].prompt.id, Unscored(description, ending))
        return verdicts

    def _description(self, how: str | DeadlineError, ended: Sequence[Job]) -> str:
        if isinstance(how, DeadlineError):
            return str(how)
        if not ended:
            return f"an idle reward process {how}"
        names = dict.fromkeys(self._name(job) for job in ended)
        if how == NO_ANSWER and not any(job.plays for job in ended):
            # It runs on, perhaps in another reward by now, so that the culprit is not known.
            names = dict.fromkeys(self._names)
        return f"the reward process of {', '.join(names)} {how}"

    def _replace(self, reason: str) -> None:
        self.replaced += 1
        if self.replaced & (self.replaced - 1) == 0:  # 1, 2, 4, 8, ...: at once, and not too often
            self._note(
                f"{reason}; another one is started ({self.replaced} so far; {self._log} holds "
                "what they printed)"
            )

    def _count(self, prompt_id: str, failed: Unscored) -> None:
        self._in_vain.append(prompt_id)
        self._lately.append((prompt_id, failed.shown))
        most = self._most_in_vain[self._succeeded]
        most *= self._processes  # processes that wait for one judge expire together
        if len(self._in_vain) >= most and len(set(self._in_vain)) >= _PROMPTS_IN_VAIN:
            raise RlaxError(
                f"{failed.reason}; reward processes ended {len(self._in_vain)} times in a row "
                "and no sample got a reward: fix that reward (its output is in "
                f"{self._log})"
            )
