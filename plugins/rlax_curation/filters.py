"""The built-in filters of groups; a function of a user's file may be another."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from rlax_plugin.api import ConfigError, Filter, NoOptions, ScoredGroup, Section

Rate = Annotated[float, Field(ge=0, le=1)]


class MixedOutcomeConfig(NoOptions):
    """Accepts a group only if its rewards differ.

    This is the dynamic sampling of DAPO (https://arxiv.org/abs/2503.14476). With advantages that
    compare the rewards of a group, a group with equal rewards has no gradient.
    """


class MixedOutcome(Filter):
    """Accepts a group only if its rewards differ: DAPO's dynamic sampling (arXiv 2503.14476).

    If all rewards are equal, every advantage is 0 and the group has no gradient.
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
        default=0.2,
        description="smallest share of passing samples in an accepted group; must be 0 with "
        "rlax.objective.guidance, which replaces a sample only where none passes",
    )
    high: Rate = Field(
        default=0.8, description="largest share of passing samples in an accepted group"
    )

    def check_together(self) -> None:
        if self.low > self.high:
            raise ConfigError("low", self.low, f"must not exceed high = {self.high}")


class DifficultyBand(Filter):
    """Accepts groups whose share of passing samples lies in a band (arXiv 2504.03380)."""

    def __init__(self, config: BandConfig, pass_threshold: float) -> None:
        self._config, self._threshold = config, pass_threshold

    def reject(self, group: ScoredGroup) -> str | None:
        rewards = group.of_policy.rewards
        rewards = rewards[~np.isnan(rewards)]
        rate = float(np.mean(rewards >= self._threshold)) if rewards.size else 0.0
        if rate < self._config.low:
            return "too hard"
        return "too easy" if rate > self._config.high else None


class TruncatedConfig(Section):
    """Accepts a group if not too many of its samples were cut at a limit.

    A sample that was cut at rlax.rollouts.max_new_tokens, or an episode at a limit of
    rlax.episodes, has no end that a reward could judge: its reward says how long it was, not
    whether it was right (overlong filtering of DAPO, https://arxiv.org/abs/2503.14476).
    """

    most: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5,
        description="largest share of truncated samples in an accepted group; 0: a group with one "
        "truncated sample is rejected",
    )


class Truncated(Filter):
    """Rejects groups in which too many samples were truncated, even if rewards failed."""

    def __init__(self, config: TruncatedConfig) -> None:
        self._most = config.most

    def reject(self, group: ScoredGroup) -> str | None:
        cut = sum(episode.truncated for episode in group.episodes)
        return "too many truncated" if cut > self._most * len(group.episodes) else None
