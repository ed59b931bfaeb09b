"""The pass-rate table: what the samples of each prompt say, forgetting as the policy ages.

Everything is in columns, by the index of the prompt in its split, and decays when it is looked at:
so neither an observation nor a look at some prompts costs more with a million prompts than with ten
thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BINS = 10
"""Ranges of pass rate in a histogram."""

Indices = np.ndarray | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class RateColumns:
    """A table at one moment, by index of the prompts.

    Attributes:
      passed_n, failed_n: float32, samples that passed and that failed, decayed to ``version_n``.
      version_n: int32, newest policy version that a sample is of; -1: nothing is known.
      groups_n: int32, groups of this run that were observed.
      streak_n: int32, see ``PassRateTable.streaks``.
      version: the newest policy version of all samples.
      outcomes: see ``PassRateTable.outcomes``.
    """

    passed_n: np.ndarray
    failed_n: np.ndarray
    version_n: np.ndarray
    groups_n: np.ndarray
    streak_n: np.ndarray
    version: int = 0
    outcomes: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def empty(cls, size: int) -> RateColumns:
        return cls(
            passed_n=np.zeros(size, np.float32),
            failed_n=np.zeros(size, np.float32),
            version_n=np.full(size, -1, np.int32),
            groups_n=np.zeros(size, np.int32),
            streak_n=np.zeros(size, np.int32),
        )

    def copy(self, version: int, outcomes: tuple[int, int, int]) -> RateColumns:
        return RateColumns(
            passed_n=self.passed_n.copy(),
            failed_n=self.failed_n.copy(),
            version_n=self.version_n.copy(),
            groups_n=self.groups_n.copy(),
            streak_n=self.streak_n.copy(),
            version=version,
            outcomes=outcomes,
        )


class PassRateTable:
    """Pass counts per prompt. Written only by ``observe``; samplers read the rest.

    The policy changes, so a sample says the less the more versions ago it was generated: after
    ``half_life`` policy versions it counts half. With a prior the counts give a Beta posterior of
    the pass rate, which becomes the prior again when a prompt is not asked for long.

    Args:
      size: prompts of the split.
      half_life: policy versions after which a sample counts half.
      prior_samples, prior_rate: the prior counts as much as this number of samples of which this
        share passed; 2 and 1/2 are a uniform prior.

    Attributes:
      version: the newest policy version of which a sample was observed: the table's now.
      outcomes: groups observed in all, of which every sample passed, of which none did, and others.
    """

    def __init__(
        self, size: int, half_life: float, prior_samples: float = 2.0, prior_rate: float = 0.5
    ):
        self.half_life = half_life
        self._alpha, self._beta = prior_samples * prior_rate, prior_samples * (1 - prior_rate)
        self._columns = RateColumns.empty(size)
        self._bins = np.zeros(BINS, np.int64)
        self.version = 0
        self.outcomes = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._columns.version_n)

    # --- writing -------------------------------------------------------------------------------

    def observe(
        self, index: int, passed: int, failed: int, version: int, *, whole: bool = True
    ) -> None:
        """Adds one group's outcome; samples that could not be scored say nothing.

        Groups may come in any order: an older one is decayed by what it lacks to the newest.

        Args:
          version: of the policy that generated them.
          whole: whether all samples of the group are there that were to be generated. Where some
            are missing, equal outcomes change neither the streak nor ``outcomes``: the others might
            have differed.
        """
        if passed + failed == 0:
            return
        c = self._columns
        good, bad, newest = float(c.passed_n[index]), float(c.failed_n[index]), version
        if (before := int(c.version_n[index])) >= 0:
            self._bins[_bin(good, good + bad)] -= 1
            newest = max(before, version)
            old, new = self._kept(newest - before), self._kept(newest - version)
            good, bad = good * old + passed * new, bad * old + failed * new
        else:
            good, bad = float(passed), float(failed)
        c.passed_n[index], c.failed_n[index] = good, bad
        c.version_n[index] = newest
        c.groups_n[index] += 1
        if whole or (passed and failed):
            c.streak_n[index] = _streak(int(c.streak_n[index]), passed, failed)
            all_passed, none_passed, mixed = self.outcomes
            self.outcomes = (
                all_passed + (not failed),
                none_passed + (not passed),
                mixed + bool(passed and failed),
            )
        # From what was stored, which is rounded.
        good, bad = float(c.passed_n[index]), float(c.failed_n[index])
        self._bins[_bin(good, good + bad)] += 1
        self.version = max(self.version, version)

    def begin_with(self, passed_n: np.ndarray, failed_n: np.ndarray) -> None:
        """Fills an empty table with what was measured elsewhere, as of its first version.

        Args:
          passed_n, failed_n: counts of each prompt; both 0: nothing is known of it.
        """
        c = self._columns
        known = passed_n + failed_n > 0
        c.passed_n[:], c.failed_n[:] = passed_n, failed_n
        c.version_n[known] = self.version
        self._count_bins()

    def columns(self) -> RateColumns:
        """A copy of all that is known; of a million prompts it takes a few ms."""
        return self._columns.copy(self.version, self.outcomes)

    def restore(self, columns: RateColumns) -> None:
        """Goes back to what ``columns`` returned.

        Raises:
          ValueError: it is of another number of prompts.
        """
        if len(columns.version_n) != len(self):
            raise ValueError(f"{len(columns.version_n)} rows for {len(self)} prompts")
        self._columns = columns.copy(columns.version, columns.outcomes)
        self.version, self.outcomes = columns.version, columns.outcomes
        self._count_bins()

    def _count_bins(self) -> None:
        c = self._columns
        known = c.version_n >= 0
        good, bad = c.passed_n[known].astype(np.float64), c.failed_n[known].astype(np.float64)
        places = np.minimum(BINS - 1, (BINS * good / (good + bad)).astype(np.int64))
        self._bins = np.bincount(places, minlength=BINS)

    def _kept(self, age: int) -> float:
        return 0.5 ** (age / self.half_life)

    # --- reading -------------------------------------------------------------------------------

    def counts(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(passed, failed) samples of some prompts, or of all, decayed to now.

        Returns:
          Two float64 arrays of the shape of ``indices``; 0 where nothing is known.
        """
        c, rows = self._columns, _rows(indices)
        kept = np.exp2((c.version_n[rows] - self.version) / self.half_life)
        return c.passed_n[rows] * kept, c.failed_n[rows] * kept

    def posterior(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(alpha, beta) of the Beta posterior of the pass rate of some prompts, or of all.

        Returns:
          Two float64 arrays of the shape of ``indices``; the prior's where nothing is known.
        """
        passed, failed = self.counts(indices)
        return self._alpha + passed, self._beta + failed

    def mean(self, indices: Indices | None = None) -> np.ndarray:
        """Measured pass rates, float64 of the shape of ``indices``; NaN where nothing is known."""
        c, rows = self._columns, _rows(indices)
        good, bad = c.passed_n[rows].astype(np.float64), c.failed_n[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            return good / (good + bad)

    def rate(self, index: int) -> float | None:
        """The measured pass rate of one prompt; None if nothing is known of it."""
        if self._columns.version_n[index] < 0:
            return None
        return float(self.mean([index])[0])

    def measured(self, indices: Indices | None = None) -> np.ndarray:
        """Of which prompts something is known, from this run or a prior; bool."""
        return self._columns.version_n[_rows(indices)] >= 0

    def streaks(self, indices: Indices | None = None) -> np.ndarray:
        """How many of the last groups in a row had one outcome, int32.

        Above 0: so many groups of which every sample passed; below 0: of which none did; 0: the
        last one was mixed, or there was none.
        """
        return self._columns.streak_n[_rows(indices)]

    def histogram(self) -> list[int]:
        """How many measured prompts lie in each of ``BINS`` equal ranges of pass rate."""
        return self._bins.tolist()


def _rows(indices: Indices | None) -> slice | np.ndarray:
    return slice(None) if indices is None else np.asarray(indices, np.int64)


def _bin(good: float, seen: float) -> int:
    return min(BINS - 1, int(BINS * good / seen))


def _streak(before: int, passed: int, failed: int) -> int:
    if passed and failed:
        return 0
    return max(before, 0) + 1 if passed else min(before, 0) - 1
