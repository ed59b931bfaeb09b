"""The expected length of a prompt's samples, by which the longest groups are generated first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlax_plugin.config import RlaxSection


class ExpectedLengths:
    """Mean lengths of the samples of each prompt so far, in tokens.

    They only decide the order in which groups are sent, never their samples. So they are not
    recorded, and a resumed run begins without them.

    Args:
      prompts: number of prompts.
    """

    def __init__(self, section: RlaxSection, prompts: int):
        # In deterministic mode nothing depends on what was generated earlier, not even an order.
        self._used = section.rollouts.order == "longest_first" and not section.deterministic
        self._mean_n = np.full(prompts if self._used else 0, np.nan, np.float32)
        self._sum, self._prompts = 0.0, 0  # of those that are known

    def observe(self, index: int, lengths: Sequence[int]) -> None:
        """Takes the lengths of a group's first turns, which count as much as all earlier groups.

        So the estimate follows a policy whose completions become longer or shorter.
        """
        if not self._used:
            return
        before, mean = float(self._mean_n[index]), float(np.mean(lengths))
        if np.isnan(before):
            self._prompts += 1
            before = 0.0
        else:
            mean = (before + mean) / 2
        self._mean_n[index] = mean
        self._sum += float(self._mean_n[index]) - before  # as it is stored, which is rounded

    def expected(self, index: int) -> float:
        """Returns the mean of a prompt, or that of all prompts if it has not been generated yet.

        0 if nothing is known, or the order does not depend on it.
        """
        if not self._prompts:
            return 0.0
        mean = float(self._mean_n[index])
        return self._sum / self._prompts if np.isnan(mean) else mean
