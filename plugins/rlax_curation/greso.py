"""The sampler ``greso``: epochs that skip prompts whose recent groups all had the same outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from rlax_curation.shuffled import Epochs
from rlax_plugin.api import ConfigError, PassRates, PositiveInt, Prompt, Sampler, Section

Share = Annotated[float, Field(ge=0, le=1)]
Chance = Annotated[float, Field(gt=0, le=1)]


class GresoConfig(Section):
    """Goes through the prompts in epochs and skips many that had equal rewards in a row.

    A prompt whose last z groups all passed is skipped with probability 1 - easy^z, and one whose
    last z groups all failed with 1 - hard^z (GRESO, https://arxiv.org/abs/2506.02177). Both
    probabilities adapt: after every `window` scored groups, `easy` rises by `step` if a smaller
    share of them than `target_easy` passed as a whole, and falls otherwise; so does `hard`. If 64
    prompts in a row are skipped, the last of them is chosen nevertheless.
    """

    easy: Chance = Field(
        default=0.5, description="probability at first that an easy prompt is chosen, if z is 1"
    )
    hard: Chance = Field(
        default=0.5, description="probability at first that a hard prompt is chosen, if z is 1"
    )
    target_easy: Share = Field(
        default=1 / 12, description="wanted share of groups of which all samples pass"
    )
    target_hard: Share = Field(
        default=1 / 6, description="wanted share of groups of which no sample passes"
    )
    step: Share = Field(
        default=0.01, description="by how much a probability changes; 0: they stay as they are"
    )
    minimum: Chance = Field(
        default=0.05, description="smallest value to which the probabilities fall"
    )
    window: PositiveInt = Field(
        default=64, description="number of scored groups after which the probabilities change"
    )

    def check_together(self) -> None:
        for name in ("easy", "hard"):
            if getattr(self, name) < self.minimum:
                reason = f"must be at least minimum = {self.minimum}"
                raise ConfigError(name, getattr(self, name), reason)


class Greso(Sampler):
    """Skips prompts by the number of their latest groups without variance (arXiv 2506.02177).

    It learns of new groups from ``rates.outcomes``, so that a resumed run adapts the same way.
    """

    def __init__(self, config: GresoConfig) -> None:
        self._config, self._epochs = config, Epochs()
        self._easy, self._hard = config.easy, config.hard
        self._seen = (0, 0, 0)  # ``rates.outcomes`` when they last changed

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        self._adapt(rates.outcomes)

        def accepts(indices: np.ndarray) -> np.ndarray:
            z = rates.streaks(indices).astype(np.float64)
            return rng.random(len(z)) < np.where(z > 0, self._easy, self._hard) ** np.abs(z)

        return [self._epochs.next(prompts, rng, accepts) for _ in range(count)]

    def _adapt(self, outcomes: tuple[int, int, int]) -> None:
        passed, failed, mixed = (n - before for n, before in zip(outcomes, self._seen, strict=True))
        if (groups := passed + failed + mixed) < self._config.window:
            return
        self._seen = outcomes
        self._easy = self._adapted(self._easy, passed / groups, self._config.target_easy)
        self._hard = self._adapted(self._hard, failed / groups, self._config.target_hard)

    def _adapted(self, chance: float, share: float, target: float) -> float:
        step = self._config.step if share < target else -self._config.step
        return min(1.0, max(self._config.minimum, chance + step))

    def state(self) -> dict[str, Any]:
        adapted = {"easy": self._easy, "hard": self._hard, "seen": list(self._seen)}
        return adapted | {"epochs": self._epochs.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self._easy, self._hard = state["easy"], state["hard"]
        passed, failed, mixed = state["seen"]
        self._seen = (passed, failed, mixed)
        self._epochs.restore(state["epochs"])
