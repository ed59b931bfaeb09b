"""Estimators and their uncertainty: ``_b`` problems, ``_n`` samples of each.

The samples of a problem are generated independently. The problems are a sample of all problems that
a set could contain, so every interval is over the choice of problems.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

DRAWS_AT_ONCE = 1 << 22  # bounds the memory of the bootstrap to about 64 MB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measure of a set of problems with its uncertainty.

    Attributes:
      value: the estimate.
      n: samples per problem.
      problems: number of problems.
      ci95: 95 % interval (low, high) over the choice of problems.
    """

    value: float
    n: int
    problems: int
    ci95: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "n": self.n,
            "problems": self.problems,
            "ci95": list(self.ci95),
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Estimate:
        low, high = document["ci95"]
        return cls(document["value"], document["n"], document["problems"], (low, high))


def pass_at_k(n: int, correct_b: ArrayLike, k: int) -> np.ndarray:
    """Returns the unbiased estimate of pass@k: ``1 - C(n - c, k) / C(n, k)``.

    It estimates the probability that at least one of k samples is correct. The ratio is computed as
    a product of k factors in [0, 1], so nothing overflows. Source: Chen et al. 2021, arXiv
    2107.03374, section 2.1.

    Args:
      n: samples generated per problem.
      correct_b: integers [problems], number of correct samples.
      k: samples allowed, at most n.

    Returns:
      float64 [problems].

    Raises:
      ValueError: k or a count is out of range.
    """
    correct_b = np.asarray(correct_b)
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n, got k = {k}, n = {n}")
    if correct_b.ndim != 1 or (correct_b.size and correct_b.dtype.kind not in "iu"):
        raise ValueError(f"expected integers [problems], got {correct_b.dtype} {correct_b.shape}")
    if correct_b.size and not (correct_b.min() >= 0 and correct_b.max() <= n):
        raise ValueError(f"counts must lie in 0 .. n = {n}")
    drawn_k = np.arange(k)
    wrong_b = (n - correct_b.astype(np.int64))[:, None]
    factors_bk = np.maximum(wrong_b - drawn_k, 0) / (n - drawn_k)
    return 1.0 - factors_bk.prod(axis=1)


def majority_at_k(answers: Sequence[Hashable | None], passed: Sequence[bool], k: int) -> float:
    """Returns the probability that the majority answer of k of the n samples is correct.

    It is exact: the mean over all ``C(n, k)`` subsets. Answers that tie for the majority share it
    equally. An answer counts as correct by the share of its samples that passed, which is 0 or 1 if
    the reward depends on the answer only. Source: Wang et al. 2022, arXiv 2203.11171
    (self-consistency), by counting instead of resampling.

    Args:
      answers: answers of n samples; None gives no answer and does not vote. A subset without votes
        counts as wrong.
      passed: True for each sample that passed.
      k: samples that vote, at most n.

    Raises:
      ValueError: k is out of range.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"majority@k needs 1 <= k <= n, got k = {k}, n = {len(answers)}")
    counts = Counter(answer for answer in answers if answer is not None)
    right = Counter(a for a, is_right in zip(answers, passed, strict=True) if is_right)
    votes = tuple(sorted((count, right[answer] / count) for answer, count in counts.items()))
    return _majority(votes, len(answers) - counts.total(), k)


@functools.lru_cache(maxsize=4096)
def _majority(votes: tuple[tuple[int, float], ...], silent: int, k: int) -> float:
    """Computes ``majority_at_k`` of answers given as (samples, share that passed).

    For every number j of votes with which an answer can win, it sums over the subsets in which no
    answer has more than j votes, by the number of samples in them and the number of answers with
    exactly j votes. Each sample is in a subset with probability k / n, independently, and the sum
    over subsets of k samples is divided by their probability. So all terms lie in [0, 1], although
    the number of subsets may exceed the range of a float.
    """
    n = silent + sum(count for count, _ in votes)
    won = 0.0
    for j in range(1, min(k, max((count for count, _ in votes), default=0)) + 1):
        if silent + sum(min(count, j) for count, _ in votes) < k:
            continue  # some answer has more
        winners = min(k // j, sum(count >= j for count, _ in votes))
        # [samples held, answers with j votes]: probability, and the same times winners' shares.
        subsets = np.zeros((k + 1, winners + 1))
        subsets[: silent + 1, 0] = _held(silent, k, n)[: k + 1]
        shares = np.zeros_like(subsets)
        for count, share in votes:
            more_subsets, more_shares = np.zeros_like(subsets), np.zeros_like(shares)
            for taken, ways in enumerate(_held(count, k, n)[: j + 1]):
                rest = k + 1 - taken
                if taken < j:
                    more_subsets[taken:] += ways * subsets[:rest]
                    more_shares[taken:] += ways * shares[:rest]
                else:
                    more_subsets[taken:, 1:] += ways * subsets[:rest, :-1]
                    more_shares[taken:, 1:] += ways * (shares + share * subsets)[:rest, :-1]
            subsets, shares = more_subsets, more_shares
        won += float((shares[k, 1:] / np.arange(1, winners + 1)).sum())
    return won / _held(n, k, n)[k]


@functools.lru_cache(maxsize=1024)
def _held(count: int, k: int, n: int) -> tuple[float, ...]:
    """Returns the probabilities that 0, 1, ... of ``count`` samples are in a subset.

    Each sample is in it with probability k / n. Each result is a ratio of integers, rounded once.
    """
    whole = n**count
    return tuple(
        math.comb(count, taken) * k**taken * (n - k) ** (count - taken) / whole
        for taken in range(count + 1)
    )


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray],
    problems: int,
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
    samples: int = 1,
    draws_at_once: int = DRAWS_AT_ONCE,
) -> tuple[float, float]:
    """Returns the percentile bootstrap interval of a statistic over problems.

    Problems are resampled, not samples: the interval says how much another choice of problems
    would have changed the statistic. Source: Efron and Tibshirani 1993, chapter 13.

    Args:
      statistic: maps indices of resampled problems, integers [rows, problems], to float64 [rows];
        NaN for a row without a value.
      problems: number of problems.
      resamples: number of resamples.
      seed: the same seed gives the same interval.
      level: the interval's coverage, between 0 and 1.
      samples: number of values that the statistic reads for each problem.
      draws_at_once: number of such values per call; bounds the memory, and changes nothing else.

    Returns:
      The ends (low, high) of the interval.

    Raises:
      ValueError: there are no problems, no resamples, or the level is outside (0, 1).
    """
    if problems < 1 or resamples < 1 or not 0.0 < level < 1.0:
        raise ValueError(
            f"expected problems and resamples >= 1 and 0 < level < 1, got {problems}, {resamples}, "
            f"{level}"
        )
    rng = np.random.default_rng(seed)
    rows = max(1, draws_at_once // (problems * samples))
    found = np.concatenate(
        [
            statistic(rng.integers(problems, size=(min(rows, resamples - done), problems)))
            for done in range(0, resamples, rows)
        ]
    )
    low, high = np.nanquantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap_interval(
    values_b: ArrayLike,
    *,
    resamples: int,
    seed: int,
    level: float = 0.95,
    draws_at_once: int = DRAWS_AT_ONCE,
) -> tuple[float, float]:
    """Returns the ``bootstrap`` interval of the mean over problems.

    Args:
      values_b: float [problems].
      resamples, seed, level, draws_at_once: see `bootstrap`.

    Raises:
      ValueError: see `bootstrap`; or a value is not finite.
    """
    values_b = np.asarray(values_b, dtype=np.float64)
    if values_b.ndim != 1 or values_b.size == 0 or not np.isfinite(values_b).all():
        raise ValueError(f"expected finite values [problems], at least one: {values_b!r}")
    return bootstrap(
        lambda drawn: values_b[drawn].mean(axis=1),
        values_b.size,
        resamples=resamples,
        seed=seed,
        level=level,
        draws_at_once=draws_at_once,
    )
