"""pass@k against hand-computed values and brute force; the bootstrap against the normal theory."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlax_plugin.run.evaluation.statistics import bootstrap_interval, pass_at_k


@st.composite
def counts(draw: st.DrawFn, most: int) -> tuple[int, int, int]:
    """(n, c, k) with 0 <= c <= n and 1 <= k <= n."""
    n = draw(st.integers(1, most))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


def test_pass_at_k_by_hand():
    # n = 4, k = 2: 6 pairs; with c right ones, C(4 - c, 2) = 6, 3, 1, 0, 0 pairs hold none.
    np.testing.assert_allclose(pass_at_k(4, [0, 1, 2, 3, 4], 2), [0, 1 / 2, 5 / 6, 1, 1])
    # n = 16, c = 2, k = 8: 1 - C(14, 8) / C(16, 8) = 1 - 3003 / 12870.
    np.testing.assert_allclose(pass_at_k(16, [2], 8), [1 - 3003 / 12870])


@pytest.mark.property
@given(counts(most=9))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(nck):
    n, c, k = nck
    subsets = list(combinations(range(n), k))  # samples 0 .. c - 1 are the right ones
    share = sum(any(i < c for i in subset) for subset in subsets) / len(subsets)
    np.testing.assert_allclose(pass_at_k(n, [c], k), [share], atol=1e-12)


def test_pass_at_k_stays_finite_where_binomials_overflow():
    # C(10000, 5000) has 3000 digits. One right sample is among k of n with probability k / n.
    np.testing.assert_allclose(pass_at_k(10_000, [1], 5_000), [0.5])


@pytest.mark.parametrize(
    ("n", "correct_b", "k"),
    [(4, [1], 0), (4, [1], 5), (4, [5], 1), (4, [-1], 1), (4, [0.5], 1), (4, [[1]], 1)],
)
def test_pass_at_k_rejects_what_makes_no_sense(n, correct_b, k):
    with pytest.raises(ValueError):
        pass_at_k(n, correct_b, k)


def test_bootstrap_interval_matches_the_normal_interval_of_a_mean():
    values_b = (np.arange(400) % 4 == 0).astype(float)  # mean .25, standard error sqrt(.1875/400)
    low, high = bootstrap_interval(values_b, resamples=4000, seed=1)
    half = 1.96 * np.sqrt(0.25 * 0.75 / 400)
    assert low == pytest.approx(0.25 - half, abs=0.005)
    assert high == pytest.approx(0.25 + half, abs=0.005)
    low80, high80 = bootstrap_interval(values_b, resamples=4000, seed=1, level=0.8)
    assert high80 - low80 == pytest.approx(2 * 1.2816 * np.sqrt(0.1875 / 400), abs=0.005)


def test_bootstrap_is_deterministic_and_its_edges_are_right():
    values_b = np.linspace(0, 1, 50)
    first = bootstrap_interval(values_b, resamples=500, seed=3)
    assert first == bootstrap_interval(values_b, resamples=500, seed=3)
    assert first != bootstrap_interval(values_b, resamples=500, seed=4)
    assert bootstrap_interval([0.25], resamples=10, seed=0) == (0.25, 0.25)
    # Resampling in pieces draws the same numbers as in one go.
    assert bootstrap_interval(values_b, resamples=500, seed=3, draws_at_once=130) == first
    for bad in ({"values_b": []}, {"values_b": [np.nan]}, {"resamples": 0}, {"level": 1.0}):
        with pytest.raises(ValueError):
            bootstrap_interval(**({"values_b": [1.0], "resamples": 10, "seed": 0} | bad))
