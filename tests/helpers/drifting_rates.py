"""Prompts whose true pass rates drift as the policy is trained, uniform on (0, 1) unless told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv, ndtr

from rlax_plugin.pass_rates.half_life import Observations
from rlax_plugin.pass_rates.intervals import beta_interval


class Simulated(NamedTuple):
    """Groups of drifting prompts.

    Attributes:
      observed: visit by visit, all prompts in order.
      rate_vn: float64 [visits, prompts], the true rates.
    """

    observed: Observations
    rate_vn: np.ndarray


class Coverage(NamedTuple):
    """Shares of true rates within their intervals: before a group is asked, and after it."""

    when_asked: float
    when_scored: float


def simulated(
    tau: float,
    *,
    prompts: int,
    visits: int,
    seed: int,
    samples: int = 8,
    versions: int = 25,
    shape: tuple[float, float] = (1.0, 1.0),
) -> Simulated:
    """Every prompt is asked about every ``versions`` versions.

    The rate is p = F(Phi(z)), and z an Ornstein-Uhlenbeck process of variance 1, so that Phi(z) is
    uniform at every moment, and p has the distribution whose quantiles F gives: Beta with
    ``shape``. Between two versions that are d apart, z has the correlation exp(-d / tau).
    """
    rng = np.random.default_rng(seed)
    z, now = rng.normal(size=prompts), rng.integers(versions, size=prompts)
    rates, at, passed = [], [], []
    for _ in range(visits):
        rates.append(betaincinv(*shape, ndtr(z)))
        at.append(now)
        passed.append(rng.binomial(samples, rates[-1]))
        ahead = 1 + rng.poisson(versions - 1, size=prompts)
        kept = np.exp(-ahead / tau)
        z = kept * z + np.sqrt(1 - kept**2) * rng.normal(size=prompts)
        now = now + ahead
    passed_m = np.concatenate(passed)
    prompt_m = np.tile(np.arange(prompts), visits)
    observed = Observations(prompt_m, np.concatenate(at), passed_m, samples - passed_m)
    return Simulated(observed, np.array(rates))


def coverage(
    of: Simulated,
    half_life: float,
    mass: float = 0.9,
    prior: tuple[float, float] = (1.0, 1.0),
) -> Coverage:
    """How many true rates lie in their intervals, from each prompt's second group on."""
    shape = of.rate_vn.shape
    observed = of.observed
    passed, failed = observed.passed_m.reshape(shape), observed.failed_m.reshape(shape)
    version = observed.version_m.reshape(shape)
    good, bad = np.zeros(shape[1]), np.zeros(shape[1])
    asked, scored = [], []
    for visit, rate in enumerate(of.rate_vn):
        if visit:
            kept = np.exp2((version[visit - 1] - version[visit]) / half_life)
            good, bad = good * kept, bad * kept
            asked.append(_share(prior[0] + good, prior[1] + bad, rate, mass))
        good, bad = good + passed[visit], bad + failed[visit]
        if visit:
            scored.append(_share(prior[0] + good, prior[1] + bad, rate, mass))
    return Coverage(float(np.mean(asked)), float(np.mean(scored)))


def _share(alpha: np.ndarray, beta: np.ndarray, rate: np.ndarray, mass: float) -> float:
    low, high = beta_interval(alpha, beta, mass)
    return float(np.mean((low <= rate) & (rate <= high)))
