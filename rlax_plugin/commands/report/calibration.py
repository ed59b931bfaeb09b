"""Compares the pass rates that were predicted for prompts with those that were observed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlax_plugin.pass_rates.intervals import beta_interval

BINS = 10
"""Number of equal ranges of predicted pass rate; exactly 0 and exactly 1 are separate bins."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Groups whose prompts had similar pass rates before.

    Attributes:
      predicted: mean pass rate before, each group weighted by its scored samples.
      observed: share of their samples that then passed.
      low, high: 90 % interval of the observed share.
    """

    groups: int
    samples: int
    predicted: float
    observed: float
    low: float
    high: float


def calibration(
    before_g: np.ndarray, passed_g: np.ndarray, scored_g: np.ndarray, prompt_g: np.ndarray
) -> list[Bin]:
    """Returns the bins that have groups, by predicted pass rate.

    Samples count, not groups. Screening may end a group after some samples because of their
    rewards, which biases the mean of the groups' shares. The share of all samples is not biased,
    since the number of samples depends only on earlier ones (Wald's identity).

    Args:
      before_g: float [groups], the pass rate of a group's prompt before the group; no NaN.
      passed_g, scored_g: int, samples of the group; at least one was scored.
      prompt_g: int, number of the prompt.
    """
    inner = np.clip((before_g * BINS).astype(np.int64), 0, BINS - 1) + 1
    place_g = np.where(before_g <= 0, 0, np.where(before_g >= 1, BINS + 1, inner))
    found = []
    for place in range(BINS + 2):
        at = np.flatnonzero(place_g == place)
        if at.size:
            samples, passed = int(scored_g[at].sum()), int(passed_g[at].sum())
            low, high = share_interval(passed_g[at], scored_g[at], prompt_g[at])
            predicted = float(before_g[at] @ scored_g[at]) / samples
            found.append(Bin(at.size, samples, predicted, passed / samples, low, high))
    return found


def share_interval(
    passed_g: np.ndarray, scored_g: np.ndarray, prompt_g: np.ndarray, mass: float = 0.9
) -> tuple[float, float]:
    """Returns an interval of the share of samples that pass, over the choice of prompts.

    Samples of one prompt are correlated, so they carry less information than as many independent
    ones. The variance of the share over prompts (of a ratio, linearised) gives the effective number
    of independent samples. The interval is Jeffreys', Beta(k + 1/2, n - k + 1/2), for that number.
    See Korn and Graubard 1998, Survey Methodology 24, on intervals of proportions in clusters; and
    Brown, Cai and DasGupta 2001, Statistical Science 16, on Jeffreys' interval and its ends.

    Args:
      passed_g, scored_g: int [groups], numbers of samples.
      prompt_g: int, number of the prompt.
      mass: probability of the interval.
    """
    _, cluster = np.unique(prompt_g, return_inverse=True)
    passed_p, scored_p = (np.bincount(cluster, weights=one) for one in (passed_g, scored_g))
    samples, prompts = float(scored_p.sum()), len(scored_p)
    share = float(passed_p.sum()) / samples
    independent = samples
    if prompts > 1 and 0 < share < 1:
        rest = passed_p - share * scored_p
        variance = prompts / (prompts - 1) * float(rest @ rest) / samples**2
        independent = min(samples, share * (1 - share) / variance) if variance > 0 else samples
    passed, failed = share * independent, (1 - share) * independent
    low, high = beta_interval(passed + 0.5, failed + 0.5, mass)
    return (float(low) if passed else 0.0), (float(high) if failed else 1.0)
