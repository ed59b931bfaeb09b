"""What a Beta posterior of a pass rate says: intervals, and whether a group will be mixed."""

from __future__ import annotations

import numpy as np


def beta_interval(
    alpha: np.ndarray | float, beta: np.ndarray | float, mass: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of the pass rate: outside of each lies half of ``1 - mass``.

    Args:
      alpha, beta: of the posterior, of any shape.
      mass: in (0, 1).
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
    """The probability that of all samples of a prompt at least one passes and one fails.

    Without known ones it is 1 - E[p^n] - E[(1-p)^n] with p ~ Beta(alpha, beta), and E[p^n] the
    product over i < n of (alpha + i) / (alpha + beta + i): 0 for fewer than two samples. Known ones
    are added to the posterior, and of the others one has to differ from them.

    Args:
      alpha, beta: of the posterior before any of these samples, of any shape.
      samples: n, those that are still to be generated.
      passed, failed: outcomes that are known already.
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
