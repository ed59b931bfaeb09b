"""pass@k and its uncertainty. ``_b`` names the axis of problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_DRAWS_AT_ONCE = 1 << 22  # bounds the memory of the bootstrap to about 64 MB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its uncertainty.

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
    """Unbiased chance that at least one of k samples is right: ``1 - C(n - c, k) / C(n, k)``.

    The ratio is taken as a product of k factors in [0, 1], so nothing overflows. Source: Chen et
    al. 2021, arXiv 2107.03374, section 2.1.

    Args:
      n: samples drawn per problem.
      correct_b: integers [problems], how many of them were right.
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


def exact_pass_at_k(p_b: ArrayLike, k: int) -> float:
    """Mean of ``1 - (1 - p)^k`` over problems whose chance of a right sample is known.

    Args:
      p_b: float [problems], in [0, 1].
      k: samples allowed, at least 1.

    Raises:
      ValueError: no problems, or k or a probability is out of range.
    """
    p_b = np.asarray(p_b, dtype=np.float64)
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, got {k}")
    if p_b.ndim != 1 or p_b.size == 0:
        raise ValueError(f"expected probabilities [problems], at least one, got shape {p_b.shape}")
    if not (p_b.min() >= 0.0 and p_b.max() <= 1.0):  # also refuses NaN
        raise ValueError("probabilities must lie in [0, 1]")
    with np.errstate(divide="ignore"):  # p = 1 gives log 0 = -inf and exp -inf = 0, as it should
        return float(np.mean(-np.expm1(k * np.log1p(-p_b))))


def bootstrap_interval(
    values_b: ArrayLike, *, resamples: int, seed: int, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap of the mean over problems.

    Problems are drawn again, not samples: the interval says how much another draw of problems
    would have changed the mean. Source: Efron and Tibshirani 1993, chapter 13.

    Args:
      values_b: float [problems].
      resamples: number of resampled means.
      seed: the same seed gives the same interval.
      level: the interval's coverage, between 0 and 1.

    Returns:
      (low, high).

    Raises:
      ValueError: no values, no resamples, a value that is not finite, or a level outside (0, 1).
    """
    values_b = np.asarray(values_b, dtype=np.float64)
    if values_b.ndim != 1 or values_b.size == 0 or not np.isfinite(values_b).all():
        raise ValueError(f"expected finite values [problems], at least one: {values_b!r}")
    if resamples < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"expected resamples >= 1 and 0 < level < 1, got {resamples}, {level}")
    rng = np.random.default_rng(seed)
    size = values_b.size
    rows = max(1, _DRAWS_AT_ONCE // size)
    means = np.concatenate(
        [
            values_b[rng.integers(size, size=(min(rows, resamples - done), size))].mean(axis=1)
            for done in range(0, resamples, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def estimate_pass_at_k(correct_b: ArrayLike, n: int, k: int, resamples: int, seed: int) -> Estimate:
    """Mean pass@k over problems with its 95 % bootstrap interval.

    Args:
      correct_b: integers [problems], right samples per problem.
      n: samples per problem.
      k: samples allowed.
      resamples, seed: see `bootstrap_interval`.

    Raises:
      ValueError: see `pass_at_k` and `bootstrap_interval`.
    """
    values_b = pass_at_k(n, correct_b, k)
    interval = bootstrap_interval(values_b, resamples=resamples, seed=seed)
    return Estimate(float(values_b.mean()), n, int(values_b.size), interval)
