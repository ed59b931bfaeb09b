"""The filter ``repetition``, which rejects groups with too many degenerate repetitions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.api import Filter, Sampled, ScoredGroup, Section


class RepetitionConfig(Section):
    """Accepts a group if not too many of its samples end in degenerate repetition.

    A sample is degenerate if its last tokens are one sequence of tokens, over and over again, such
    as a phrase that the model keeps repeating. Only the end of a sample is examined, so a text of a
    million tokens takes no longer than one of a few hundred.
    """

    most: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.25,
        description="largest share of degenerate samples in an accepted group",
    )
    period: Annotated[int, Field(ge=1, le=256)] = Field(
        default=64, description="length in tokens of the longest sequence that counts as repeated"
    )
    repeats: Annotated[int, Field(ge=2, le=16)] = Field(
        default=4, description="number of times that it must stand in a row at the sample's end"
    )
    tokens: Annotated[int, Field(ge=2, le=4096)] = Field(
        default=32,
        description="smallest number of tokens that the repetition must have in all, so that a "
        "number such as 10000 is none",
    )


class Repetition(Filter):
    """Rejects groups in which too many samples end in degenerate repetition."""

    def __init__(self, config: RepetitionConfig) -> None:
        self._config = config

    def reject(self, group: ScoredGroup) -> str | None:
        degenerate = sum(
            any(self._repeats(sampled) for sampled in episode.sampled) for episode in group.episodes
        )
        most = self._config.most * len(group.episodes)
        return "degenerate repetition" if degenerate > most else None

    def _repeats(self, sampled: Sampled) -> bool:
        """True if the end equals itself shifted by some period.

        It takes at most ``period`` comparisons of ``max(tokens, period * repeats)`` tokens.
        """
        config = self._config
        # The token that ended the sample by itself is no part of what was repeated before it.
        end = len(sampled.tokens) - (sampled.finish == "stop")
        longest = max(config.tokens, config.period * config.repeats)
        tail = sampled.tokens[max(0, end - longest) : end]
        for period in range(1, config.period + 1):
            length = max(config.tokens, period * config.repeats)
            if length > len(tail):
                return False  # longer periods need more
            if np.array_equal(tail[-length + period :], tail[-length:-period]):
                return True
        return False
