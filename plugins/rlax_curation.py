"""Built-in samplers (which prompts are chosen) and filters (which groups are used)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    Extension,
    Filter,
    NoOptions,
    PassRates,
    PositiveInt,
    Prompt,
    Sampler,
    ScoredGroup,
    Section,
    hookimpl,
)

Rate = Annotated[float, Field(ge=0, le=1)]


class ShuffledConfig(NoOptions):
    """Chooses every prompt once per epoch, in a new random order in each epoch."""


class Shuffled(Sampler):
    """Every prompt once per epoch, shuffled again for each epoch."""

    def __init__(self) -> None:
        self._left: list[int] = []

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < count:
            if not self._left:
                self._left = rng.permutation(len(prompts)).tolist()
            chosen.append(self._left.pop())
        return chosen

    def state(self) -> dict[str, Any]:
        return {"left": list(self._left)}

    def restore(self, state: dict[str, Any]) -> None:
        self._left = list(state["left"])


class LearnabilityConfig(Section):
    """Chooses prompts with an intermediate pass rate p more often.

    A prompt is chosen from random candidates, with a probability proportional to p (1 - p) (LILO,
    https://arxiv.org/abs/2502.12272).
    """

    candidates: PositiveInt = Field(
        default=8, description="number of random prompts from which one is chosen"
    )
    prior_samples: Annotated[float, Field(gt=0)] = Field(
        default=4.0,
        description="p is the measured pass rate, combined with a prior of 1/2 that counts as "
        "much as this number of samples",
    )
    floor: Rate = Field(
        default=0.02,
        description="smallest value that is used for p (1 - p), so that every prompt can still be "
        "chosen",
    )


class Learnability(Sampler):
    """Prompts with weight p(1-p), the chance-of-a-gradient rule of LILO (arXiv 2502.12272).

    For each prompt chosen, ``candidates`` are sampled uniformly and one of them is picked with
    probability proportional to ``max(floor, p (1 - p))``, p being the measured pass rate shrunk
    towards 1/2 by ``prior_samples``. Easy and hopeless prompts become rare, but can still be
    chosen.
    """

    def __init__(self, config: LearnabilityConfig) -> None:
        self._config = config

    def _weight(self, prompt: Prompt, rates: PassRates) -> float:
        known = rates.get(prompt.id)
        rate, seen = known if known is not None else (0.5, 0.0)
        prior = self._config.prior_samples
        p = (rate * seen + 0.5 * prior) / (seen + prior)
        return max(self._config.floor, p * (1 - p))

    def choose(
        self, prompts: Sequence[Prompt], rates: PassRates, rng: np.random.Generator, count: int
    ) -> list[int]:
        chosen: list[int] = []
        for candidates in rng.integers(len(prompts), size=(count, self._config.candidates)):
            weights = np.array([self._weight(prompts[i], rates) for i in candidates])
            chosen.append(int(rng.choice(candidates, p=weights / weights.sum())))
        return chosen

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to restore: what it knows is the pass-rate table."""


class MixedOutcomeConfig(NoOptions):
    """Accepts a group only if its rewards differ.

    This is the dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476). With advantages that
    compare the rewards of a group, a group with equal rewards has no gradient.
    """


class MixedOutcome(Filter):
    """Accepts a group only if its rewards differ: DAPO's dynamic sampling (arXiv 2503.14476).

    Without a difference every advantage is 0, and the group has no gradient.
    """

    def reject(self, group: ScoredGroup) -> str | None:
        rewards = group.rewards[~np.isnan(group.rewards)]
        if rewards.size and rewards.min() < rewards.max():
            return None
        return "all rewards equal"


class BandConfig(Section):
    """Accepts a group if its share of passing samples lies between two bounds.

    A sample passes if its reward is at least rlax.curation.pass_threshold
    (https://arxiv.org/abs/2504.03380).
    """

    low: Rate = Field(
        default=0.2, description="smallest share of passing samples in an accepted group"
    )
    high: Rate = Field(
        default=0.8, description="largest share of passing samples in an accepted group"
    )

    @model_validator(mode="after")
    def _ordered(self) -> BandConfig:
        if self.low > self.high:
            raise ConfigError("low", self.low, f"must not exceed high = {self.high}")
        return self


class DifficultyBand(Filter):
    """Accepts groups whose share of passing samples lies in a band (arXiv 2504.03380)."""

    def __init__(self, config: BandConfig, pass_threshold: float) -> None:
        self._config, self._threshold = config, pass_threshold

    def reject(self, group: ScoredGroup) -> str | None:
        rewards = group.rewards[~np.isnan(group.rewards)]
        rate = float(np.mean(rewards >= self._threshold)) if rewards.size else 0.0
        if rate < self._config.low:
            return "too hard"
        return "too easy" if rate > self._config.high else None


@hookimpl
def rlax_register_sampler() -> dict[str, Extension]:
    def build_learnability(config: LearnabilityConfig, context: BuildContext) -> Learnability:
        return Learnability(config)

    return {
        "shuffled": Extension(ShuffledConfig, lambda config, context: Shuffled()),
        "learnability": Extension(LearnabilityConfig, build_learnability),
    }


@hookimpl
def rlax_register_filter() -> dict[str, Extension]:
    def build_band(config: BandConfig, context: BuildContext) -> DifficultyBand:
        return DifficultyBand(config, context.section.curation.pass_threshold)

    return {
        "mixed_outcome": Extension(MixedOutcomeConfig, lambda config, context: MixedOutcome()),
        "difficulty_band": Extension(BandConfig, build_band),
    }
