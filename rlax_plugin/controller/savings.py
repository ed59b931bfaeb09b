"""What it saves not to generate samples to their end."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from rlax_plugin.types import ScoredGroup

_RECENT = 1024  # samples


class Savings:
    """Estimates from the lengths of recent samples how long others would have become.

    Lengths are of first turns: only these are given up.
    """

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_RECENT)

    def observe(self, group: ScoredGroup) -> None:
        """Takes the lengths of a group that was generated to its end."""
        for episode in group.episodes:
            self._lengths.append(len(next(episode.sampled).tokens))

    def tokens(self, so_far: Sequence[int]) -> int:
        """Tokens that samples would have taken beyond those that they have.

        For each sample it is the mean of what longer ones among the recent samples took beyond that
        length; 0 if none was longer.

        Args:
          so_far: tokens of each sample.
        """
        lengths = np.array(self._lengths, np.int64)
        beyond = (lengths[lengths > tokens] - tokens for tokens in so_far)
        return round(sum(float(more.mean()) for more in beyond if more.size))
