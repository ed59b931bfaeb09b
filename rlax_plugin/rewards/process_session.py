"""Inside a reward process: an environment's session, whose other side is in the trainer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlax_plugin.ports.environment import Answer, EpisodeLimit, Given, Outcome, messages_of
from rlax_plugin.rewards.messages import (
    LONGEST,
    answer_from,
    checked_metrics,
    line,
    packed,
    within,
)
from rlax_plugin.types import Prompt

Send = Callable[[Mapping[str, Any]], None]


class ProcessSession:
    """A ``Session`` that sends its questions to the trainer.

    Args:
      message: the trainer's message with the state of the episode.
      send: sends a message of this job.
    """

    def __init__(self, message: Mapping[str, Any], send: Send):
        self._send = send
        self._calls = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self.answer = self._last = self._seen(message)

    def _seen(self, message: Mapping[str, Any]) -> Answer:
        self.turns_left: int = message["turns_left"]
        self.tokens_left: int = message["tokens_left"]
        return answer_from(message["answer"])

    @property
    def text(self) -> str:
        """The text of the last answer."""
        return self._last.text

    async def sample(self, given: Given, trajectory: int = 0) -> Answer:
        said = await self._ask({"sample": _given(given), "trajectory": int(trajectory)})
        self._last = self._seen(said)
        return self._last

    async def begin(self, context: Given) -> int:
        return (await self._ask({"begin": _given(context)}))["trajectory"]

    async def _ask(self, question: dict[str, Any]) -> Mapping[str, Any]:
        number = next(self._calls)
        question["call"] = number
        try:
            size = len(line(question))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"JSON cannot hold these messages: {error}") from None
        if size > LONGEST:
            raise ValueError(f"{size} bytes are too long for one turn: {LONGEST} are the most")
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(question)
            said = await asked
        finally:
            del self._asked[number]
        if "limit" in said:
            raise EpisodeLimit(said["limit"])
        if "wrong" in said:
            raise ValueError(said["wrong"])
        return said

    def told(self, message: Mapping[str, Any]) -> None:
        """Handles the trainer's answer to a question."""
        asked = self._asked.get(message["call"])
        if asked is not None and not asked.done():
            asked.set_result(message)


def _given(given: Given) -> Any:
    if isinstance(given, str):
        return given
    if (messages := messages_of(given)) is None:
        return {"tokens": packed(_tokens(given), "<i4")}
    try:
        return {"messages": [dict(message) for message in messages]}
    except (TypeError, ValueError):
        raise ValueError("each message must be a mapping with a role and a content") from None


def _tokens(given: Any) -> np.ndarray:
    tokens = np.asarray(given)
    whole = not tokens.size or np.issubdtype(tokens.dtype, np.integer)
    if tokens.ndim != 1 or not whole or np.any(tokens != tokens.astype(np.int32)):
        raise ValueError("what is given must be text, messages, or a list of token ids")
    return tokens.astype(np.int32)


async def outcome_of(
    environment: Any, prompt: Prompt, session: ProcessSession, reward_limit: float
) -> dict[str, Any]:
    """Plays an episode and returns its outcome as JSON; passes on the environment's exceptions."""
    try:
        outcome = await environment.play(prompt, session)
    except EpisodeLimit:
        outcome = Outcome(ended="cut")
    if not isinstance(outcome, Outcome):
        raise TypeError(f"play returned a {type(outcome).__name__}, and must return an Outcome")
    if outcome.ended not in ("done", "cut"):
        raise ValueError(f"an outcome ended {outcome.ended!r}: 'done' and 'cut' are allowed")
    shown = {
        "text": session.text if outcome.text is None else str(outcome.text),
        "rewards": [within(one, reward_limit, "the environment") for one in outcome.rewards],
        "ended": str(outcome.ended),
        "metrics": dict(checked_metrics(outcome.metrics)),
    }
    if (size := len(line(shown))) > LONGEST:
        raise ValueError(f"its outcome has {size} bytes, and may have {LONGEST}")
    return shown
