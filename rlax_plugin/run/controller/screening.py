"""Generates groups in two phases, and decides after the first if the other samples are needed.

The decision depends on the pass rate of the prompt when the group was issued, and on its first
samples, but not on groups that happen to be scored in between: a deterministic run stays so.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.base.types import Episode, Request, Score, ScoredGroup, Unscored
from rlax_plugin.config import RlaxSection
from rlax_plugin.data.curation.intervals import mixed_probability
from rlax_plugin.reward.messages import Needs
from rlax_plugin.rollout.episodes.runner import ScoredEpisodes
from rlax_plugin.run.controller.limits import ALL_FAILED
from rlax_plugin.run.state.run_state import Open

_RECENT = 1024  # samples


class Ended(NamedTuple):
    """The end of a group after its first samples.

    Attributes:
      reason: as in ``Scored.rejected``.
      given_up: tokens of each of the other samples when its generation was ended; empty: they were
        not to be generated anyway.
    """

    reason: str
    given_up: tuple[int, ...] = ()


class Screening:
    """Screens groups by their first samples, as ``rlax.curation.screening`` configures it."""

    def __init__(self, section: RlaxSection):
        self._config = section.curation.screening
        self._group_size = section.rollouts.group_size
        self._pass_threshold = section.curation.pass_threshold

    def first(self, request: Request) -> Request:
        """Returns the request for a group's first samples; for all of them without screening."""
        pilots = self._config.pilots
        return dataclasses.replace(request, seeds=request.seeds[:pilots]) if pilots else request

    def rejects(self, group: Open, scores: Sequence[Score | Unscored]) -> Ended | None:
        """Returns the reason the other samples are not generated; None if they are.

        Args:
          scores: of the first samples.
        """
        if len(scores) == self._group_size:
            return None
        rewards = [score.total for score in scores if isinstance(score, Score)]
        if not rewards:
            return Ended(ALL_FAILED)
        if min(rewards) < max(rewards):
            return None
        seen, missing = len(rewards), self._group_size - len(scores)
        passes = rewards[0] >= self._pass_threshold
        known = (seen, 0) if passes else (0, seen)
        least = self._config.min_mixed_probability
        if least < 1 and mixed_probability(*group.posterior, missing, *known) >= least:
            return None
        return Ended(f"screened: all first samples {'passed' if passes else 'failed'}")


def joined(first: ScoredEpisodes, others: ScoredEpisodes) -> ScoredEpisodes:
    """Returns the samples of both phases as one group."""
    return ScoredEpisodes(
        first.episodes + others.episodes,
        first.scores + others.scores,
        tuple(dict.fromkeys(first.workers + others.workers)),
        first.reward_s + others.reward_s,
    )


def check_rewards(section: RlaxSection, needs: Needs) -> None:
    """Checks that rewards can score the samples of a group separately, where that is needed.

    Raises:
      ConfigError: groups are screened or guided, and a reward compares the samples of a group.
    """
    if (guidance := section.objective.guidance) is not None and needs.group:
        reason = "must be null: a reward of rlax.rewards scores the samples of a group together"
        raise ConfigError("rlax.objective.guidance", dict(guidance), reason)
    pilots = section.curation.screening.pilots
    if pilots and needs.group:
        reason = "must be 0: a reward of rlax.rewards scores the samples of a whole group together"
        raise ConfigError("rlax.curation.screening.pilots", pilots, reason)


def first_lengths(episodes: Sequence[Episode]) -> list[int]:
    """Returns the lengths of first turns, in tokens; of episodes without a turn none."""
    return [len(first.tokens) for one in episodes if (first := next(one.sampled, None))]


class Savings:
    """Estimates from the lengths of recent samples the tokens saved by ending samples early.

    Only the lengths of first turns count, because only first turns are ended early.
    """

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_RECENT)

    def observe(self, group: ScoredGroup) -> None:
        """Takes the lengths of a group that was generated to its end."""
        self._lengths.extend(first_lengths(group.episodes))

    def tokens(self, so_far: Sequence[int]) -> int:
        """Returns the tokens that samples would have needed beyond those that they have.

        For each sample it is the mean excess of the longer ones among the recent samples over its
        length; 0 if none was longer.

        Args:
          so_far: tokens of each sample.
        """
        if not so_far:
            return 0
        lengths = np.array(self._lengths, np.int64)
        beyond = (lengths[lengths > tokens] - tokens for tokens in so_far)
        return round(sum(float(more.mean()) for more in beyond if more.size))
