"""Selection ``shuffle_r1``: pairs of large contrast train, those of large advantages most often.

Shuffle-R1 (https://arxiv.org/abs/2508.05612) has two parts. *Pairwise trajectory sampling* sorts
the samples of a group by advantage, pairs the best with the worst, the second best with the second
worst, and so on, and keeps the first pairs. *Advantage-based batch shuffle* draws the pairs of a
batch again, in rounds, with probabilities proportional to their advantages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pydantic import Field

from rlax_plugin.api import (
    BuildContext,
    ConfigError,
    PositiveInt,
    ScoredGroup,
    Section,
    Selection,
    TrainBatch,
)


class ShuffleR1Config(Section):
    """Trains on pairs of samples that contrast most (Shuffle-R1, https://arxiv.org/abs/2508.05612).

    The samples of a group are sorted by advantage, and paired from both ends; the first samples / 2
    pairs are kept. With rounds above 1, the rows are filled in this many rounds: each draws an
    equal share of the batch's pairs, no pair twice, with probability |A1| + |A2|. Advantages are
    those among all samples of the group. Both steps are biased, see docs/curation.md.
    """

    rounds: PositiveInt = Field(
        default=8,
        description="rounds of the shuffle; 1: every kept pair trains once, without a shuffle",
    )


class Pair(NamedTuple):
    """Two samples of one group.

    Attributes:
      group: place of the group in the batch.
      first, second: places of the samples in the group, the one with the larger advantage first.
      weight: |A1| + |A2|.
    """

    group: int
    first: int
    second: int
    weight: float


def check(config: ShuffleR1Config, context: BuildContext) -> None:
    """Checks that the rows hold pairs, at least one for each round.

    Raises:
      ConfigError: they do not.
    """
    section, key = context.section, "rlax.curation.selection"
    if (samples := section.samples_selected) % 2:
        reason = "must be even: shuffle_r1 selects pairs"
        if samples == section.rollouts.group_size:
            reason += "; 0 is rlax.rollouts.group_size"
        raise ConfigError(f"{key}.samples", samples, reason)
    if config.rounds > (pairs := section.rollouts.groups_per_step * samples // 2):
        reason = f"must not exceed the {pairs} pairs of a batch, groups_per_step * samples / 2"
        raise ConfigError(f"{key}.rounds", config.rounds, reason)


class ShuffleR1(Selection):
    """Pairwise trajectory sampling, and the advantage-based batch shuffle if ``rounds`` is above 1.

    Over the rounds a pair i is drawn ``rounds`` * q_i times in expectation, where q_i is the
    probability that one round draws it: w_i / sum_j w_j if it draws one pair, and less than
    proportional to w_i = |A1| + |A2| the more it draws. The estimate of the gradient is not
    corrected for q_i, as in the paper: with 1 / q_i it would be that of ``rounds: 1`` with more
    variance, at the same cost.
    """

    def __init__(self, config: ShuffleR1Config):
        self._rounds = config.rounds

    def repeats(self, batch: TrainBatch, count: int, rng: np.random.Generator) -> list[np.ndarray]:
        """See ``Selection``."""
        repeats = [np.zeros(len(group.episodes), np.int32) for group in batch.groups]
        pairs = [
            pair
            for place, (group, own) in enumerate(zip(batch.groups, batch.advantages, strict=True))
            for pair in pairs_of(place, group, own)[: count // len(batch.groups) // 2]
        ]
        for index in self._drawn(np.array([pair.weight for pair in pairs]), count // 2, rng):
            pair = pairs[index]
            repeats[pair.group][[pair.first, pair.second]] += 1
        return repeats

    def _drawn(self, weight_n: np.ndarray, most: int, rng: np.random.Generator) -> list[int]:
        """Returns the index of each pair as often as it trains.

        Args:
          most: number of pairs for which the batch has rows.
        """
        candidates = np.flatnonzero(weight_n)
        if self._rounds == 1 or not len(candidates):  # without any gradient there is no choice
            return list(range(len(weight_n)))
        drawn: list[int] = []
        for one in range(1, self._rounds + 1):
            size = most * one // self._rounds - most * (one - 1) // self._rounds
            # The smallest of exponential variates with rates w are successive draws without
            # replacement, each in proportion to w (Efraimidis and Spirakis, 2006).
            arrivals = rng.exponential(size=len(candidates)) / weight_n[candidates]
            drawn += candidates[np.argsort(arrivals)[:size]].tolist()
        return drawn


def pairs_of(place: int, group: ScoredGroup, advantages: np.ndarray) -> list[Pair]:
    """Pairs the samples of a group that have a reward, from both ends of their order.

    Equal advantages are in the order of samples; of an odd number the middle sample has no pair.
    The difference A1 - A2 does not grow from one pair to the next.

    Args:
      place: place of the group in the batch.
      advantages: of the group, see ``TrainBatch``; of tokens their mean over the sample counts.
    """
    if advantages.ndim > 1:
        lengths_n = np.array([episode.tokens for episode in group.episodes])
        advantages = advantages.sum(axis=1) / lengths_n.clip(1)
    scored = np.flatnonzero(~np.isnan(group.rewards))
    order = scored[np.argsort(-advantages[scored], kind="stable")].tolist()
    halves = zip(order[: len(order) // 2], order[::-1], strict=False)
    weight_n = np.abs(advantages)
    return [Pair(place, a, b, float(weight_n[a] + weight_n[b])) for a, b in halves]
