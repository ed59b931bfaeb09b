"""Several environments in one run: the share of each in the batches, and how far ahead it is asked.

The order of training is planned by weight: the next group is of the environment whose trained
groups are furthest below its share. The plan follows from the trained groups alone, so that a
resume continues it, and a batch has its planned groups of each environment, whichever end first or
are rejected by filters.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping

_PATIENCE, _MOST_PATIENCE = 4, 256


class Mix:
    """The plan of one run.

    Args:
      weights: environment -> weight, relative to each other; of equal ones the first comes first.
      groups: groups of a batch.
    """

    def __init__(self, weights: Mapping[str, float], groups: int):
        whole = sum(weights.values())
        self._shares = {name: weight / whole for name, weight in weights.items()}
        self._groups = groups
        self._known: tuple[int, ...] = ()
        self._count, self._places = 0, dict[str, list[int]]()  # the longest plan; others begin it

    def places(self, trained: Mapping[str, int], count: int) -> Mapping[str, list[int]]:
        """Returns environment -> the places of its groups among the next to train, from 0.

        Args:
          trained: environment -> number of its groups that have trained.
          count: the number of places.
        """
        known = tuple(trained.get(name, 0) for name in self._shares)
        if known != self._known or count > self._count:
            self._known, self._count = known, count
            self._places = {name: [] for name in self._shares}
            used = dict(zip(self._shares, known, strict=True))
            total = sum(known)
            for place in range(count):
                name = max(used, key=lambda one: self._shares[one] * (total + 1) - used[one])
                used[name] += 1
                total += 1
                self._places[name].append(place)
        return {name: own[: bisect_left(own, count)] for name, own in self._places.items()}

    def of_batch(self, trained: Mapping[str, int]) -> dict[str, int]:
        """Returns environment -> the number of its groups in the next batch."""
        places = self.places(trained, self._groups)
        return {name: len(own) for name, own in places.items()}


class StepsAhead:
    """For how many steps ahead groups of each environment are issued: adaptive concurrency.

    Staleness bounds it from above, and an environment begins there. One whose groups are ready a
    whole step before they train gets one step less: they are fresher then, and leave their slots to
    others. One for which a batch waits gets one step more, unless requests wait for slots: then the
    others get one step less at once. An environment that was given too little is tried again after
    twice as many steps.

    Args:
      most: ``Staleness.steps_ahead`` of the config.
    """

    def __init__(self, environments: Collection[str], most: int):
        self._most = most
        self.of = dict.fromkeys(environments, most)
        self._patience = dict.fromkeys(environments, _PATIENCE)
        self._early = dict.fromkeys(environments, 0)  # batches in a row

    def batch_asked(
        self, waited_for: Collection[str], ready: Collection[str], *, slots_short: bool
    ) -> None:
        """Adapts to what there is when the trainer asks for a batch.

        Args:
          waited_for: the environments that lack groups of this batch.
          ready: the environments that have all groups of this and of the next batch.
          slots_short: True if requests wait for slots.
        """
        for name, steps in self.of.items():
            self._early[name] = self._early[name] + 1 if name in ready else 0
            if name in waited_for:
                if not slots_short and steps < self._most:
                    self.of[name] = steps + 1
                    self._patience[name] = min(2 * self._patience[name], _MOST_PATIENCE)
            elif steps > 1 and (
                self._early[name] >= self._patience[name] or (slots_short and waited_for)
            ):
                self.of[name] = steps - 1
                self._early[name] = 0

    def capacity(self, name: str, groups: int, oversample: float) -> int:
        """Returns the number of places in the plan up to which an environment is asked."""
        return math.ceil(self.of[name] * groups * oversample)
