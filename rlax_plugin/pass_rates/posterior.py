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
    alpha: np.ndarray | float, beta: np.ndarray | float, samples: int
) -> np.ndarray:
    """The probability that of some samples of a prompt at least one passes and one fails.

    It is 1 - E[p^n] - E[(1-p)^n] with p ~ Beta(alpha, beta), and E[p^n] the product over i < n of
    (alpha + i) / (alpha + beta + i). For fewer than two samples it is 0.

    Args:
      alpha, beta: of the posterior, of any shape.
      samples: n.
    """
    alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
    if samples < 2:
        return np.zeros(np.broadcast(alpha, beta).shape)
    i = np.arange(samples)
    total = (alpha + beta)[..., None] + i
    all_pass = np.prod((alpha[..., None] + i) / total, axis=-1)
    none_pass = np.prod((beta[..., None] + i) / total, axis=-1)
    return np.maximum(1 - all_pass - none_pass, 0.0)
