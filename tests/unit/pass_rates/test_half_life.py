"""The fitted half-life: posteriors of rates that drift are as sure as they may be."""

from __future__ import annotations

import numpy as np
import pytest
from drifting_rates import coverage, simulated

from rlax_plugin.pass_rates.half_life import Observations, covered, fitted_half_life


def test_the_share_of_outcomes_in_their_intervals_is_exact() -> None:
    # One prompt: 1 of 1 passed, then 1 of 1. Predicted by Beta(2, 1): fails with 1/3.
    observed = Observations(*(np.array(one) for one in ([0, 0], [0, 0], [1, 1], [0, 0])))
    # The outcome's range is [1/3, 1], of which the middle 90 % has [1/3, 0.95].
    assert covered(observed, 8.0) == pytest.approx((0.95 - 1 / 3) / (2 / 3))
    # After one half-life the first counts half: Beta(1.5, 1) passes with 0.6.
    later = Observations(observed.prompt_m, np.array([0, 8]), observed.passed_m, observed.failed_m)
    assert covered(later, 8.0) == pytest.approx((0.95 - 0.4) / 0.6)
    alone = Observations(*(np.array(one) for one in ([0, 1], [0, 0], [1, 1], [0, 0])))
    assert np.isnan(covered(alone, 8.0))
    with pytest.raises(ValueError, match="more than once"):
        fitted_half_life(alone)


def test_the_order_of_observations_does_not_matter() -> None:
    observed = simulated(200, prompts=50, visits=6, seed=1).observed
    order = np.random.default_rng(0).permutation(len(observed.prompt_m))
    columns = ("prompt_m", "version_m", "passed_m", "failed_m")
    mixed = Observations(*(getattr(observed, name)[order] for name in columns))
    assert covered(mixed, 20.0) == pytest.approx(covered(observed, 20.0), rel=1e-12)


@pytest.mark.parametrize("tau", [100, 200, 400])  # twice the drift, the drift, half the drift
def test_intervals_cover_what_they_say_on_prompts_that_were_not_fitted(tau: float) -> None:
    """True rates uniform on (0, 1), correlated with themselves by exp(-versions / tau)."""
    half_life = fitted_half_life(simulated(tau, prompts=1000, visits=16, seed=0).observed)
    found = coverage(simulated(tau, prompts=1000, visits=16, seed=1), half_life)
    assert 0.88 <= found.when_asked <= 0.92 and 0.88 <= found.when_scored <= 0.92


def test_forgetting_too_slowly_or_too_fast_would_be_seen() -> None:
    drifting = simulated(200, prompts=1000, visits=16, seed=1)
    assert coverage(drifting, 64).when_asked < 0.7 and covered(drifting.observed, 64) < 0.82
    slow = simulated(1600, prompts=1000, visits=16, seed=1)
    assert coverage(slow, 12).when_asked > 0.93


def test_a_policy_that_does_not_drift_forgets_nothing() -> None:
    assert fitted_half_life(simulated(1e9, prompts=500, visits=10, seed=0).observed) == 65536


def test_intervals_need_a_prior_like_the_rates():
    """As docs/curation.md says: most prompts always or never pass, and moments give the prior."""
    of = {"prompts": 1000, "visits": 8, "shape": (0.3, 0.3)}
    observed = simulated(200, **of, seed=0).observed
    passed, n = observed.passed_m, 8
    m, q = passed.mean() / n, (passed * (passed - 1.0)).mean() / (n * (n - 1))
    samples = (m - q) / (q - m**2)
    assert samples == pytest.approx(0.6, rel=0.15) and m == pytest.approx(0.5, abs=0.05)
    shares = {}
    for prior in ((1.0, 1.0), (samples * m, samples * (1 - m))):
        half_life = fitted_half_life(observed, prior=prior)
        found = coverage(simulated(200, **of, seed=1), half_life, prior=prior)
        shares[prior] = found.when_asked
    default, like_the_rates = shares.values()
    assert default < 0.65 and 0.87 < like_the_rates < 0.93
