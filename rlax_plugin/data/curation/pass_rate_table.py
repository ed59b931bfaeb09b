"""The pass-rate table: counts of each prompt's samples, decayed as the policy changes.

The counts are columns, by the index of the prompt in its split, and are decayed when they are read.
So the cost of an observation, or of reading some prompts, does not depend on the number of prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Indices = np.ndarray | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class RateColumns:
    """A copy of a table at one point in time, by index of the prompts.

    Attributes:
      passed_n, failed_n: float32, samples that passed and that failed, decayed to ``version_n``.
      version_n: int32, newest policy version that generated a sample; -1: nothing is known.
      groups_n: int32, number of groups of this run that were observed.
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
        columns = ("passed_n", "failed_n", "version_n", "groups_n", "streak_n")
        copies = {name: getattr(self, name).copy() for name in columns}
        return RateColumns(**copies, version=version, outcomes=outcomes)


class PassRateTable:
    """Pass counts per prompt, written only by ``observe`` and read by samplers.

    The policy changes, so a sample counts less the more versions ago it was generated: half after
    ``half_life`` policy versions. With a prior the counts give a Beta posterior of the pass rate,
    which returns to the prior if a prompt is not generated for a long time.

    Args:
      size: number of prompts of the split.
      half_life: policy versions after which a sample counts half.
      prior_samples, prior_rate: the prior counts as much as this number of samples of which this
        share passed; 2 and 1/2 are a uniform prior.

    Attributes:
      version: the newest policy version of which a sample was observed; counts are decayed to it.
      outcomes: numbers of observed groups in which all samples passed, none passed, or both occur.
    """

    def __init__(
        self, size: int, half_life: float, prior_samples: float = 2.0, prior_rate: float = 0.5
    ):
        self.half_life = half_life
        self._alpha, self._beta = prior_samples * prior_rate, prior_samples * (1 - prior_rate)
        self._columns = RateColumns.empty(size)
        self.version = 0
        self.outcomes = (0, 0, 0)

    def __len__(self) -> int:
        return len(self._columns.version_n)

    # --- writing -------------------------------------------------------------------------------

    def observe(
        self, index: int, passed: int, failed: int, version: int, *, whole: bool = True
    ) -> None:
        """Adds one group's outcome; samples that could not be scored do not count.

        Groups may come in any order: an older one is decayed by its distance to the newest version.

        Args:
          version: version of the policy that generated the samples.
          whole: True if all samples of the group were generated. If some are missing, equal
            outcomes change neither the streak nor ``outcomes``, as the others might have differed.
        """
        if passed + failed == 0:
            return
        c = self._columns
        good, bad, newest = float(c.passed_n[index]), float(c.failed_n[index]), version
        if (before := int(c.version_n[index])) >= 0:
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
        self.version = max(self.version, version)

    def begin_with(self, passed_n: np.ndarray, failed_n: np.ndarray) -> None:
        """Fills an empty table with earlier measurements, as of its first version.

        Args:
          passed_n, failed_n: counts of each prompt; both are 0 if it was not measured.
        """
        c = self._columns
        c.passed_n[:], c.failed_n[:] = passed_n, failed_n
        known = c.passed_n + c.failed_n > 0  # as they are kept: counts that round to 0 are none
        c.version_n[known] = self.version

    def columns(self) -> RateColumns:
        """Returns a copy of the table; for a million prompts this takes a few ms."""
        return self._columns.copy(self.version, self.outcomes)

    def restore(self, columns: RateColumns) -> None:
        """Restores a copy that ``columns`` returned.

        Raises:
          ValueError: the copy has another number of prompts.
        """
        if len(columns.version_n) != len(self):
            raise ValueError(f"{len(columns.version_n)} rows for {len(self)} prompts")
        self._columns = columns.copy(columns.version, columns.outcomes)
        self.version, self.outcomes = columns.version, columns.outcomes

    def _kept(self, age: int) -> float:
        return 0.5 ** (age / self.half_life)

    # --- reading -------------------------------------------------------------------------------

    def counts(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (passed, failed) samples of some or all prompts, decayed to ``version``.

        Returns:
          Two float64 arrays of the shape of ``indices``; 0 where nothing is known.
        """
        c, rows = self._columns, _rows(indices)
        kept = np.exp2((c.version_n[rows] - self.version) / self.half_life)
        return c.passed_n[rows] * kept, c.failed_n[rows] * kept

    def posterior(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns (alpha, beta) of the Beta posterior of the pass rate of some or all prompts.

        Returns:
          Two float64 arrays of the shape of ``indices``; the prior's where nothing is known.
        """
        passed, failed = self.counts(indices)
        return self._alpha + passed, self._beta + failed

    def mean(self, indices: Indices | None = None) -> np.ndarray:
        """Returns pass rates, float64 of the shape of ``indices``; NaN where nothing is known."""
        c, rows = self._columns, _rows(indices)
        good, bad = c.passed_n[rows].astype(np.float64), c.failed_n[rows].astype(np.float64)
        with np.errstate(invalid="ignore"):
            return good / (good + bad)

    def rate(self, index: int) -> float | None:
        """Returns the measured pass rate of one prompt; None if nothing is known of it."""
        if self._columns.version_n[index] < 0:
            return None
        return float(self.mean([index])[0])

    def measured(self, indices: Indices | None = None) -> np.ndarray:
        """Returns bool: True for prompts that were measured, in this run or by a prior."""
        return self._columns.version_n[_rows(indices)] >= 0

    def streaks(self, indices: Indices | None = None) -> np.ndarray:
        """Returns the number of most recent groups in a row with the same outcome, int32.

        It is positive for groups in which every sample passed, negative for groups in which none
        did, and 0 if the last group was mixed or there was none.
        """
        return self._columns.streak_n[_rows(indices)]


def _rows(indices: Indices | None) -> slice | np.ndarray:
    return slice(None) if indices is None else np.asarray(indices, np.int64)


def _streak(before: int, passed: int, failed: int) -> int:
    if passed and failed:
        return 0
    return max(before, 0) + 1 if passed else min(before, 0) - 1


class PartOfRates:
    """The rows of a table that belong to the prompts of one environment; see ``PassRates``.

    ``outcomes`` are those of the whole table.

    Args:
      start: row of the first prompt.
      size: number of prompts.
    """

    def __init__(self, table: PassRateTable, start: int, size: int):
        self._table, self._start, self._size = table, start, size

    @property
    def version(self) -> int:
        return self._table.version

    @property
    def outcomes(self) -> tuple[int, int, int]:
        return self._table.outcomes

    def __len__(self) -> int:
        return self._size

    def counts(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        return self._table.counts(self._rows(indices))

    def posterior(self, indices: Indices | None = None) -> tuple[np.ndarray, np.ndarray]:
        return self._table.posterior(self._rows(indices))

    def measured(self, indices: Indices | None = None) -> np.ndarray:
        return self._table.measured(self._rows(indices))

    def streaks(self, indices: Indices | None = None) -> np.ndarray:
        return self._table.streaks(self._rows(indices))

    def _rows(self, indices: Indices | None) -> np.ndarray:
        own = np.arange(self._size) if indices is None else np.asarray(indices, np.int64)
        return self._start + own
