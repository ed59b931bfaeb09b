"""The Beta posterior of a pass rate: intervals, and the probability that a group is mixed."""

from __future__ import annotations

import numpy as np


def beta_interval(
    alpha: np.ndarray | float, beta: np.ndarray | float, mass: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the central interval (low, high) of the pass rate.

    Args:
      alpha, beta: parameters of the posterior, of any shape.
      mass: probability of the interval, in (0, 1).
    """
    from scipy.special import betaincinv

    tail = (1 - mass) / 2
    return betaincinv(alpha, beta, tail), betaincinv(alpha, beta, 1 - tail)


def mixed_probability(
    alpha: np.ndarray | float,
    beta: np.ndarray | float,
    samples: int,
    passed: int = 0,
    failed: int = 0,
) -> np.ndarray:
    """Returns the probability that at least one sample of a prompt passes and at least one fails.

    Without known outcomes it is 1 - E[p^n] - E[(1-p)^n] with p ~ Beta(alpha, beta), where E[p^n] is
    the product over i < n of (alpha + i) / (alpha + beta + i); it is 0 for fewer than two samples.
    Known outcomes are added to the posterior, and at least one other sample must differ from them.

    Args:
      alpha, beta: parameters of the posterior before any of these samples, of any shape.
      samples: n, the number of samples still to be generated.
      passed, failed: numbers of outcomes that are already known.
    """
    alpha, beta = np.asarray(alpha, np.float64) + passed, np.asarray(beta, np.float64) + failed
    i = np.arange(samples)
    total = (alpha + beta)[..., None] + i
    all_pass = np.prod((alpha[..., None] + i) / total, axis=-1)
    none_pass = np.prod((beta[..., None] + i) / total, axis=-1)
    if passed and failed:
        return np.ones_like(all_pass)
    if passed or failed:
        return 1 - (all_pass if passed else none_pass)
    return np.maximum(1 - all_pass - none_pass, 0.0)
