"""Episodes that environments play in reward processes, as seen by the trainer's process."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlax_plugin.ports.environment import EpisodeLimit, Given, Outcome, PlayedEpisode
from rlax_plugin.rewards.messages import (
    LONGEST,
    answer_to,
    checked_metrics,
    prompt_to,
    unpacked,
    within,
)
from rlax_plugin.rewards.reward_jobs import LONGEST_ERROR, Clock, Job, Send
from rlax_plugin.text.harmless import harmless, one_line
from rlax_plugin.types import Prompt, Unscored

_MOST_QUESTIONS = 64  # of one episode at a time


@dataclass(slots=True)
class PlayCounts:
    """Counts of the ways in which episodes of an environment have ended.

    Attributes:
      done: ended by their environment.
      cut: ended at a limit on turns or tokens.
      errors: ended with an exception, or with their process.
      late: ended at ``rlax.deadlines.episode_s``; they also count as errors.
    """

    done: int = 0
    cut: int = 0
    errors: int = 0
    late: int = 0

    def since(self, before: PlayCounts) -> PlayCounts:
        """Returns the counts since an earlier state."""
        return PlayCounts(
            self.done - before.done,
            self.cut - before.cut,
            self.errors - before.errors,
            self.late - before.late,
        )


class PlayJob(Job):
    """Plays one episode.

    Attributes:
      result: future with the outcome, or with the reason why there is none.
    """

    limit_key = "rlax.deadlines.episode_s"
    plays = True

    def __init__(
        self,
        prompt: Prompt,
        played: PlayedEpisode,
        limit_s: float,
        counts: PlayCounts,
        reward_limit: float = math.inf,
    ):
        self._reward_limit = reward_limit
        self._questions: set[asyncio.Task[None]] = set()
        self._played, self._counts = played, counts
        self._turns, self.number = 1, 0
        self._shown = prompt_to(prompt)
        super().__init__(prompt, limit_s, on_loop=True)
        self.result: asyncio.Future[Outcome | Unscored] = asyncio.get_running_loop().create_future()

    def begin(self, number: int, clock: Clock, send: Send) -> None:
        self._stop_questions()
        if self.number and number:
            self._played.begin_again()
        self._turns = 1
        super().begin(number, clock, send)

    def _stop_questions(self) -> None:
        for question in self._questions:
            question.cancel()
        self._questions.clear()

    def message(self, *, with_prompt: bool) -> dict[str, Any]:
        play = {"prompt": self._shown, **self._state()}
        return {"job": self.number, "play": play}

    def _state(self) -> dict[str, Any]:
        """Returns the state of a session, including the newest answer."""
        played = self._played
        return {
            "answer": answer_to(played.answer),
            "turns_left": played.turns_left,
            "tokens_left": played.tokens_left,
        }

    def take(self, message: Mapping[str, Any], size: int) -> bool:
        if "outcome" in message:
            outcome = self._outcome(message["outcome"])
            if (paid := len(outcome.rewards)) in (0, self._turns):
                self._end(outcome)
            else:  # only this process knows which answers came before the outcome
                self.fail(
                    f"play returned {paid} rewards for {self._turns} turns, and must return one "
                    "for each turn, or none"
                )
        elif "error" in message:
            self.fail(one_line(message["error"], LONGEST_ERROR))
        elif size > LONGEST or len(self._questions) >= _MOST_QUESTIONS:
            raise ValueError("that is too much")
        elif self.late is None and not self.result.done():
            self._ask(message)
            return False
        return "call" not in message

    def _outcome(self, said: Mapping[str, Any]) -> Outcome:
        limit = self._reward_limit
        rewards = tuple(within(one, limit, "the environment") for one in said["rewards"])
        if not isinstance(said["text"], str):
            raise TypeError("the text of an outcome is no text")
        text, ended = harmless(said["text"]), said["ended"]
        if len(text) > LONGEST:
            raise ValueError(f"the text of an outcome has {len(text)} characters")
        if ended not in ("done", "cut"):
            raise ValueError("an outcome is neither done nor cut")
        return Outcome(text, rewards, ended, checked_metrics(said["metrics"]))

    def _ask(self, message: Mapping[str, Any]) -> None:
        """Answers a question of the environment; the policy's time is not the environment's."""
        call = int(message["call"])
        if "sample" in message:
            given, trajectory = _given(message["sample"]), int(message["trajectory"])
            found = partial(self._sampled, given, trajectory)
        else:
            found = partial(self._begun, _given(message["begin"]))
        question = asyncio.ensure_future(self._answer(call, found, self._send))
        self._questions.add(question)
        self.clock.stop()
        question.add_done_callback(self._answered)

    def _answered(self, question: asyncio.Task[None]) -> None:
        if question in self._questions:  # else it belongs to an earlier attempt
            self._questions.discard(question)
            if not self._questions and not self.result.done():
                self.clock.go()

    async def _sampled(self, given: Given, trajectory: int) -> dict[str, Any]:
        answer = await self._played.sample(given, trajectory)
        self._turns += 1
        return {**self._state(), "answer": answer_to(answer)}

    async def _begun(self, context: Given) -> dict[str, Any]:
        return {"trajectory": self._played.begin(context)}

    async def _answer(
        self, call: int, found: Callable[[], Awaitable[dict[str, Any]]], send: Send
    ) -> None:
        try:
            said = await found()
        except EpisodeLimit as limit:
            said = {"limit": one_line(str(limit))}
        except ValueError as error:
            said = {"wrong": one_line(str(error))}
        except Exception as error:  # noqa: BLE001  it is raised where ``play`` is awaited
            self.fail_run(error)
            return
        send({"job": self.number, "call": call, **said})

    def abandon(self) -> None:
        super().abandon()
        self._stop_questions()  # what the policy would answer is not wanted either

    def fail(self, reason: str) -> None:
        super().fail(reason)
        self._end(Unscored(reason))

    def fail_run(self, error: Exception) -> None:
        self._stop_questions()
        if not self.result.done():
            self.result.set_exception(error)

    def _end(self, result: Outcome | Unscored) -> None:
        self._stop_questions()
        if self.result.done():
            return
        self._counts.errors += isinstance(result, Unscored)
        self._counts.late += self.late is not None
        if isinstance(result, Outcome):
            self._counts.cut += result.ended == "cut"
            self._counts.done += result.ended == "done"
        self.result.set_result(result)

    @property
    def succeeded(self) -> bool:
        if not self.result.done() or self.result.cancelled() or self.result.exception():
            return False
        return isinstance(self.result.result(), Outcome)


def _given(said: Any) -> Given:
    if isinstance(said, str):
        return said
    if "messages" not in said:
        return unpacked(said["tokens"], "<i4").tolist()
    messages = said["messages"]
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ValueError("these are no messages")
    return messages
