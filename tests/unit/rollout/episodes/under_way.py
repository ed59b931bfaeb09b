"""An episode under way, as tests of ``Playing`` begin it."""

from collections.abc import Mapping, Sequence

import numpy as np
from part_stubs import SourceStub
from sections import section_with

from rlax_plugin.base.types import EMPTY, Key, Turn
from rlax_plugin.rollout.episodes.playing import Ask, Playing, TurnLog
from rlax_plugin.testing import make_sampled
from rlax_plugin.testing.task import decode, encode

KEY = Key("train", 7, 2)
FIRST = Turn(encode("12"), make_sampled(3, version=4))  # tokens 4, 5, 6: "234"


class Log(TurnLog):
    """Remembers what it is told: place -> what was given; and the places that are void."""

    oldest = 0

    def __init__(self) -> None:
        self.turns: list[tuple[Key, Turn]] = []
        self.void: list[tuple[int, int]] = []

    def turns_of(self, group: int) -> Sequence[tuple[Key, Turn]]:
        return self.turns

    def sampled(self, key: Key, turn: Turn) -> None:
        self.turns.append((key, turn))

    def discarded(self, key: Key) -> None:
        self.void.append((key.trajectory, key.turn))

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(key.trajectory, key.turn) for key, _ in self.turns]


class Source(SourceStub):
    def decode(self, tokens: np.ndarray) -> str:
        return decode(tokens)

    def encode_given(self, text: str) -> list[int]:
        return encode(text).tolist()


def playing(
    ask: Ask,
    log: Log | None = None,
    known: Sequence[tuple[Key, Turn]] = (),
    *,
    rollouts: Mapping[str, int] = EMPTY,
    deterministic: bool = False,
    source: Source | None = None,
    first: Turn | None = FIRST,
    **limits: int,
) -> Playing:
    """Prompts of at most 4 tokens, answers of at most 6, 12 tokens behind a prompt, 4 turns."""
    section = section_with(
        environment={"name": "x"},
        deterministic=deterministic,
        rollouts={"max_prompt_tokens": 4, "max_new_tokens": 6} | dict(rollouts),
        episodes={"max_turns": 4, "max_tokens": 12} | limits,
    )
    return Playing(section, source or Source(), KEY, first, ask=ask, log=log or Log(), known=known)
