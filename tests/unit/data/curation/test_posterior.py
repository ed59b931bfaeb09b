"""Intervals of pass rates, and the probability that a group is mixed."""

import numpy as np
import pytest

from rlax_plugin.api import beta_interval, mixed_probability


def test_the_interval_of_a_uniform_rate_is_the_middle() -> None:
    low, high = beta_interval(1.0, 1.0, 0.9)
    assert (low, high) == (pytest.approx(0.05), pytest.approx(0.95))
    # Beta(2, 1) has the distribution function p ** 2.
    low, high = beta_interval(np.array([2.0]), np.array([1.0]), 0.5)
    assert low == pytest.approx(np.sqrt([0.25])) and high == pytest.approx(np.sqrt([0.75]))


def test_a_group_of_an_unknown_prompt_is_mixed_with_n_minus_1_of_n_plus_1() -> None:
    # Under a uniform rate each number of passes is equally probable: n - 1 of n + 1 are mixed.
    for samples in (2, 3, 8, 64):
        expected = (samples - 1) / (samples + 1)
        assert mixed_probability(1.0, 1.0, samples) == pytest.approx(expected)
    assert mixed_probability(1.0, 1.0, 1) == 0 and mixed_probability(1.0, 1.0, 0) == 0


def test_mixed_probability_agrees_with_counting_draws() -> None:
    rng = np.random.default_rng(0)
    alpha, beta = np.array([[0.5, 3.0], [20.0, 1.0]]), np.array([[2.0, 3.0], [0.3, 900.0]])
    passed = rng.binomial(6, rng.beta(alpha, beta, (200_000, 2, 2)))
    counted = np.mean((passed > 0) & (passed < 6), axis=0)
    assert mixed_probability(alpha, beta, 6) == pytest.approx(counted, abs=0.005)


def test_a_sure_prompt_is_hardly_ever_mixed() -> None:
    # Beta(a, tiny): E[p^n] is nearly 1.
    assert 0 <= mixed_probability(1e6, 1e-6, 8) < 1e-9
