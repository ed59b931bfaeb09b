"""Sampling against numbers worked out by hand, eager and jit, and against the probabilities."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from maxtext_overrides.sampler.sampling import sample, uniforms

# Probabilities 0.1, 0.4, 0.2, 0.3, 0 at temperature 1.
LOGITS = np.array([math.log(0.1), math.log(0.4), math.log(0.2), math.log(0.3), -np.inf], np.float32)


def generate(u, temperature=1.0, top_k=0, top_p=1.0, *, logits=LOGITS, jit=True):
    u = np.atleast_1d(np.asarray(u, np.float32))

    def full(value, dtype):
        return jnp.full(u.shape, value, dtype)

    out = (jax.jit(sample) if jit else sample)(
        jnp.broadcast_to(jnp.asarray(logits), (u.size, len(logits))),
        jnp.asarray(u),
        full(temperature, jnp.float32),
        full(top_k, jnp.int32),
        full(top_p, jnp.float32),
    )
    return [np.asarray(x) for x in out]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("top_k", [0, 5])  # 5 takes the way of truncation, and cuts nothing
def test_inverse_cdf(jit, top_k):
    # Running sums: 0.1, 0.5, 0.7, 1.0.
    token, full, sampled = generate(
        [0.05, 0.15, 0.49, 0.51, 0.69, 0.71, 0.99], top_k=top_k, jit=jit
    )
    np.testing.assert_array_equal(token, [0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_allclose(full, np.log([0.1, 0.4, 0.4, 0.2, 0.2, 0.3, 0.3]), rtol=1e-5)
    np.testing.assert_array_equal(full, sampled)


def test_temperature():
    # Temperature 0.5 squares the probabilities: .01, .16, .04, .09 of .30.
    token, full, _ = generate([0.02, 0.3, 0.6, 0.8], temperature=0.5)
    np.testing.assert_array_equal(token, [0, 1, 2, 3])
    np.testing.assert_allclose(full, np.log(np.array([0.01, 0.16, 0.04, 0.09]) / 0.3), rtol=1e-5)


def test_top_k():
    # The two most probable are tokens 1 and 3: 4/7 and 3/7.
    token, full, sampled = generate([0.0, 0.57, 0.58, 0.999], top_k=2)
    np.testing.assert_array_equal(token, [1, 1, 3, 3])
    np.testing.assert_allclose(full, np.log([0.4, 0.4, 0.3, 0.3]), rtol=1e-5)
    np.testing.assert_allclose(sampled, np.log([4 / 7, 4 / 7, 3 / 7, 3 / 7]), rtol=1e-5)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    # .4 + .3 = .7 reaches .6; .4 + .3 + .2 = .9 is needed for .75.
    assert set(generate(np.linspace(0, 0.999, 50), top_p=0.6)[0]) == {1, 3}
    assert set(generate(np.linspace(0, 0.999, 50), top_p=0.75)[0]) == {1, 2, 3}
    token, _, sampled = generate([0.9], top_p=1e-6)
    assert token == [1] and sampled == [0.0]


def test_top_k_comes_before_top_p():
    # Top-3 leaves 4/9, 3/9, 2/9: top-p 0.75 keeps two of them (7/9), of all tokens three (.9).
    token, _, sampled = generate(np.linspace(0, 0.999, 50), top_k=3, top_p=0.75)
    assert set(token) == {1, 3}
    np.testing.assert_allclose(sampled[token == 1], math.log(4 / 7), rtol=1e-5)


def test_ties_are_cut_by_token_id():
    token, _, sampled = generate(np.linspace(0, 0.999, 30), top_k=2, logits=np.zeros(4, np.float32))
    assert set(token) == {0, 1}
    np.testing.assert_allclose(sampled, math.log(0.5), rtol=1e-5)


def test_greedy_reports_temperature_one():
    token, full, sampled = generate([0.0, 0.999], temperature=0.0)
    np.testing.assert_array_equal(token, [1, 1])
    np.testing.assert_allclose(full, math.log(0.4), rtol=1e-5)
    np.testing.assert_array_equal(sampled, 0.0)


@pytest.mark.parametrize("vocab", [3, 64, 1000, 4099])
def test_never_a_token_without_probability(vocab):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 3, vocab).astype(np.float32)
    logits[rng.random(vocab) < 0.7] = -np.inf
    logits[vocab // 2] = 0.0
    edges = [0.0, 2**-24, 0.5, 1 - 2**-23, 1 - 2**-24]
    token, full, _ = generate(np.append(edges, rng.random(2000)), logits=logits)
    assert np.isfinite(logits[token]).all() and np.isfinite(full).all()


def test_truncation_of_a_neighbour_changes_nothing():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(0, 2, (6, 300)), jnp.float32)
    u, one = jnp.asarray(rng.random(6), jnp.float32), jnp.ones(6)
    keep = jnp.array([0, 5, 0, 3, 0, 1], jnp.int32)
    plain = sample(logits, u, one, jnp.zeros(6, jnp.int32), one)
    mixed = sample(logits, u, one, keep, one)
    for a, b in zip(plain, mixed, strict=True):
        np.testing.assert_array_equal(a[::2], b[::2])


def test_generates_follow_the_probabilities():
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 1, 50).astype(np.float32)
    count = 50_000
    seeds = np.stack([np.full(count, 7), np.arange(count)], axis=1).astype(np.uint32)
    token, _, _ = generate(uniforms(seeds, np.zeros(count, np.int32)), logits=logits)
    expected = np.exp(logits) / np.exp(logits).sum() * count
    observed = np.bincount(token, minlength=50)
    chi_square = ((observed - expected) ** 2 / expected).sum()
    assert chi_square < 85.4  # 99.9 % quantile with 49 degrees of freedom


def test_uniforms_depend_on_seed_and_position_only():
    seeds = np.array([[1, 2], [3, 4], [1, 2], [1, 2]], np.uint32)
    u = np.asarray(uniforms(seeds, np.array([0, 0, 0, 1])))
    assert u[0] == u[2] and len({u[0], u[1], u[3]}) == 3
    assert ((u >= 0) & (u < 1)).all()
    assert np.asarray(uniforms(seeds[1:2], np.array([0])))[0] == u[1]
    with jax.default_prng_impl("unsafe_rbg"):
        np.testing.assert_array_equal(np.asarray(uniforms(seeds, np.array([0, 0, 0, 1]))), u)


def test_uniforms_are_threefry():
    # Random123's known answer: key 0, counter 0 gives 0x6b200159 first.
    u = uniforms(np.zeros((1, 2), np.uint32), np.zeros(1, np.int32))
    assert float(u[0]) == (0x6B200159 >> 8) / 2**24
