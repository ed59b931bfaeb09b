"""The trainer's side of an episode: a policy that counts."""

import asyncio
from collections.abc import Sequence

import numpy as np

from rlax_plugin.ports.environment import Answer, EpisodeLimit


class Played:
    """Answers ``n`` and the text that it was given in the n-th turn.

    Args:
      first: text of the first answer; None: there is none.
      turns: at most.
      errors: turn -> what sampling it raises.

    Attributes:
      asked: (given, trajectory) of each turn since the beginning.
      beginnings: how often it was played from the beginning.
      go: turns are sampled once this is set.
      waits: whether a turn is being sampled.
    """

    def __init__(
        self,
        first: str | None = "first",
        *,
        index: int = 0,
        turns: int = 8,
        errors: dict[int, Exception] | None = None,
    ):
        self.index, self._first, self._turns = index, first, turns
        self._errors = errors or {}
        self.asked: list[tuple[Sequence[int] | str, int]] = []
        self.contexts: list[Sequence[int] | str] = []
        self.options: list[dict[str, object]] = []
        self.beginnings = 1
        self.waits = False
        self.go = asyncio.Event()
        self.go.set()

    @property
    def answer(self) -> Answer | None:
        return None if self._first is None else _answer(self._first)

    @property
    def turns_left(self) -> int:
        return self._turns - 1 - len(self.asked)

    @property
    def tokens_left(self) -> int:
        return 10 * self.turns_left

    def begin_again(self) -> None:
        self.asked.clear()
        self.contexts.clear()
        self.beginnings += 1

    async def sample(
        self, given: Sequence[int] | str, trajectory: int = 0, **options: object
    ) -> Answer:
        self.options.append(options)
        self.waits = True
        await self.go.wait()
        self.waits = False
        if not self.turns_left:
            raise EpisodeLimit("8 turns are the most")
        self.asked.append((given, trajectory))
        if error := self._errors.get(len(self.asked)):
            raise error
        return _answer(f"{len(self.asked)} {given}")

    def begin(self, context: Sequence[int] | str) -> int:
        self.contexts.append(context)
        return len(self.contexts)


def _answer(text: str) -> Answer:
    logprobs = np.array([-0.5, -0.25], np.float32)
    return Answer(np.array([7, 8], np.int32), text, "stop", logprobs, 6)
