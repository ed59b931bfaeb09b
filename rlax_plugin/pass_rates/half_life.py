"""Fits the half-life of samples, in policy versions, to the outcomes that were observed.

A half-life is right if the posterior is calibrated: its predictions for a prompt's next group must
come true as often as they say. Maximum likelihood of the next outcomes prefers half-lives that are
too long, with intervals that are too narrow, so calibration itself is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MASS = 0.9
"""Probability mass of the intervals."""

TARGET = 0.907
"""Share of next outcomes that must lie in their intervals.

It is above ``MASS``, because an outcome consists of few samples, whose noise hides about half of
the error of the rate's interval. In simulations a target of 0.90 covers 0.87 to 0.90 of the true
rates, and one of 0.907 covers 0.89 to 0.91 (``benchmarks/pass_rates.py``).
"""

_TRIED = [2.0**i for i in range(17)]  # policy versions
_AS_GOOD = 0.001
_BISECTIONS = 5


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Groups that were scored, in any order.

    Attributes:
      prompt_m: int, index of the prompt.
      version_m: int, policy version.
      passed_m, failed_m: int, numbers of samples.
    """

    prompt_m: np.ndarray
    version_m: np.ndarray
    passed_m: np.ndarray
    failed_m: np.ndarray

    def by_visit(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns (observations, prompts) of the first groups of all prompts, the second, ..."""
        order = np.lexsort((self.version_m, self.prompt_m))
        _, place, counts = np.unique(self.prompt_m[order], return_inverse=True, return_counts=True)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        visit = np.arange(len(order)) - first
        by_visit = np.argsort(visit, kind="stable")
        ends = np.cumsum(np.bincount(visit))[:-1]
        return [(order[at], place[at]) for at in np.split(by_visit, ends)]


def covered(
    observed: Observations,
    half_life: float,
    *,
    prior: tuple[float, float] = (1.0, 1.0),
    mass: float = MASS,
) -> float:
    """Returns the share of next outcomes that lie within the intervals predicted for them.

    Each group except the first of its prompt is predicted from those before it, by a beta-binomial
    distribution. Outcomes are discrete, so an interval of exactly ``mass`` may contain only a part
    of an outcome's probability. An outcome therefore counts by the overlap of its range of the
    distribution function with the middle ``mass``: a randomised probability integral transform,
    averaged instead of sampled.

    Returns:
      The share in [0, 1]; NaN if no prompt has two groups.
    """
    return _covered(observed, observed.by_visit(), half_life, prior, mass)


def fitted_half_life(
    observed: Observations,
    *,
    prior: tuple[float, float] = (1.0, 1.0),
    mass: float = MASS,
    target: float = TARGET,
) -> float:
    """Returns the longest half-life with calibrated predictions, in policy versions, 1 to 65536.

    If the policy drifts so fast that a sample says little about the next group, no half-life
    reaches ``target``, and the longest of those that come closest is returned. If the policy does
    not drift, the maximum is returned.

    Args:
      prior: alpha and beta of the Beta prior.
      mass: probability mass of the intervals.
      target: share of the next outcomes that must lie in the intervals.

    Raises:
      ValueError: no prompt has two groups.
    """
    visits = observed.by_visit()
    if len(visits) < 2:
        raise ValueError("a half-life can be fitted only where prompts were asked more than once")

    def share(half_life: float) -> float:
        return _covered(observed, visits, half_life, prior, mass)

    found = [share(half_life) for half_life in _TRIED]
    predicted = sum(len(at) for at, _ in visits[1:])
    error = float(np.sqrt(mass * (1 - mass) / predicted))
    if found[-1] >= mass - 2 * error:
        return _TRIED[-1]
    wanted = min(target, max(found) - _AS_GOOD)
    longest = max(i for i, value in enumerate(found) if value >= wanted)
    if longest == len(_TRIED) - 1:
        return _TRIED[-1]
    low, high = _TRIED[longest], _TRIED[longest + 1]
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if share(middle) >= wanted else (low, middle)
    return low


def _covered(
    observed: Observations,
    visits: list[tuple[np.ndarray, np.ndarray]],
    half_life: float,
    prior: tuple[float, float],
    mass: float,
) -> float:
    prompts = len(visits[0][0]) if visits else 0
    passed_p, failed_p = np.zeros(prompts), np.zeros(prompts)
    version_p = np.zeros(prompts, np.int64)
    inside, count = 0.0, 0
    for number, (at, place) in enumerate(visits):
        version = observed.version_m[at]
        kept = np.exp2((version_p[place] - version) / half_life) if number else 0.0
        good, bad = passed_p[place] * kept, failed_p[place] * kept
        passed, failed = observed.passed_m[at], observed.failed_m[at]
        if number:
            shares = _inside(prior[0] + good, prior[1] + bad, passed, passed + failed, mass)
            inside, count = inside + float(shares.sum()), count + len(at)
        passed_p[place], failed_p[place] = good + passed, bad + failed
        version_p[place] = version
    return inside / count if count else float("nan")


def _inside(
    alpha: np.ndarray, beta: np.ndarray, passed: np.ndarray, samples: np.ndarray, mass: float
) -> np.ndarray:
    """Returns the part of each outcome in the middle ``mass`` of its prediction, in [0, 1]."""
    below, own = beta_binomial(alpha, beta, passed, samples)
    low, high = (1 - mass) / 2, (1 + mass) / 2
    overlap = np.minimum(below + own, high) - np.maximum(below, low)
    return np.clip(overlap / own, 0.0, 1.0)


def beta_binomial(
    alpha: np.ndarray, beta: np.ndarray, passed: np.ndarray, samples: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (P(fewer pass), P(as many pass)) of ``samples`` with pass rate Beta(alpha, beta)."""
    from scipy.special import betaln, gammaln

    below, own = np.zeros(len(alpha)), np.zeros(len(alpha))
    whole = gammaln(samples + 1) - betaln(alpha, beta)
    for k in range(int(passed.max(initial=0)) + 1):
        rest = np.maximum(samples - k, 0)
        p = np.exp(whole - gammaln(k + 1) - gammaln(rest + 1) + betaln(alpha + k, beta + rest))
        below += np.where(k < passed, p, 0.0)
        own = np.where(k == passed, p, own)
    return below, own
