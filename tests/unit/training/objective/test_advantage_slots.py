"""Advantages, with numbers worked out by hand."""

import math

import numpy as np
import pytest
from objective_harness import advantages_of, slots_of

from rlax_plugin.base.errors import ConfigError


def advantages(
    rewards, lengths=None, groups=None, token_rewards_nt=None, values_nt=None, **options
):
    slots = slots_of("grpo", advantage=options)
    lengths = [1] * len(rewards) if lengths is None else lengths
    more = {"token_rewards_nt": token_rewards_nt, "values_nt": values_nt}
    more = {k: np.array(v, float) for k, v in more.items() if v is not None}
    return advantages_of(slots, rewards, lengths, groups, **more)


def test_group_normalised_by_hand():
    # Rewards 1 0 0 0: mean 1/4; squared deviations 9/16 + 3/16 = 3/4; ddof 1: std 1/2.
    rewards, name = [1, 0, 0, 0], "group_normalised"
    found = advantages(rewards, name=name)
    np.testing.assert_allclose(found, [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    # ddof 0: std sqrt(3)/4, so 0.75 / 0.4330 = sqrt(3).
    found = advantages(rewards, name=name, ddof=0, epsilon=0)
    np.testing.assert_allclose(found, [math.sqrt(3), *[-1 / math.sqrt(3)] * 3], rtol=1e-12)
    # epsilon 0.5 doubles the divisor.
    found = advantages(rewards, name=name, epsilon=0.5)
    np.testing.assert_allclose(found, [0.75, -0.25, -0.25, -0.25])
    found = advantages(rewards, name=name, scale_by_std=False)
    np.testing.assert_allclose(found, [0.75, -0.25, -0.25, -0.25])
    # Two groups are two statistics.
    found = advantages([1, 10, 0, 20], groups=[0, 1, 0, 1], name=name, scale_by_std=False)
    np.testing.assert_allclose(found, [0.5, -5, -0.5, 5])


def test_leave_one_out_by_hand():
    # 3 - mean(1, 2) = 1.5; 1 - 2.5 = -1.5; 2 - 2 = 0.
    np.testing.assert_allclose(advantages([3, 1, 2], name="leave_one_out"), [1.5, -1.5, 0])


def test_length_weighted_by_hand():
    # Baseline (1 * 3 + 5 * 1 + 2 * 2)/8 = 1.5.
    found = advantages([3, 1, 2], lengths=[1, 5, 2], name="length_weighted")
    np.testing.assert_allclose(found, [1.5, -0.5, 0.5])


def test_exponential_weights_by_hand():
    # Group of 3, 0, 0: mean 1, so 2, -1, -1; of 5, 5: 0.
    rewards, groups = [3, 5, 0, 5, 0], [0, 1, 0, 1, 0]
    e = math.exp
    found = advantages(rewards, groups=groups, name="exponential")
    np.testing.assert_allclose(found, [e(2), 1, e(-1), 1, e(-1)], rtol=1e-12)
    found = advantages(rewards, groups=groups, name="exponential", beta=0.5, cap=9)
    np.testing.assert_allclose(found, [9, 1, e(-2), 1, e(-2)], rtol=1e-12)  # e^4 is above 9
    # The mean of all is 13/5.
    found = advantages(rewards, groups=groups, name="exponential", baseline="batch_mean")
    np.testing.assert_allclose(found, [e(0.4), e(2.4), e(-2.6), e(2.4), e(-2.6)], rtol=1e-12)
    # exp(1000) would be infinite.
    found = advantages([2000, 0], name="exponential")
    np.testing.assert_allclose(found, [20, 0])
    np.testing.assert_array_equal(advantages([3, 0], name="one"), [1, 1])


def test_batch_normalised_by_hand():
    options = {"name": "batch_normalised", "epsilon": 0}
    # Samples 3, 0 of lengths 1, 2 as tokens 3, 0, 0: mean 1, variance (4 + 1 + 1)/2 = 3.
    found = advantages([3, 0], [1, 2], **options)
    np.testing.assert_allclose(found, [[2 / math.sqrt(3)] * 2, [-1 / math.sqrt(3)] * 2])
    # ddof 0: variance 2.
    found = advantages([3, 0], [1, 2], **options | {"ddof": 0})
    np.testing.assert_allclose(found[:, 0], [2 / math.sqrt(2), -1 / math.sqrt(2)])
    # Over samples 3, 0: mean 1.5, variance 4.5.
    found = advantages([3, 0], [1, 2], whiten_over="samples", **options)
    np.testing.assert_allclose(found[:, 0], [1.5 / math.sqrt(4.5), -1.5 / math.sqrt(4.5)])
    # epsilon 6: added to the variance, 3 + 6 = 9; as its floor, max(3, 6) = 6.
    found = advantages([3, 0], [1, 2], **options | {"epsilon": 6})
    np.testing.assert_allclose(found[:, 0], [2 / 3, -1 / 3])
    found = advantages([3, 0], [1, 2], epsilon_rule="floor", **options | {"epsilon": 6})
    np.testing.assert_allclose(found[:, 0], [2 / math.sqrt(6), -1 / math.sqrt(6)])
    np.testing.assert_array_equal(
        advantages([3, 0], [1, 2], whiten_over="none", **options)[:, 0], [3, 0]
    )


def test_batch_normalised_with_a_group_baseline_by_hand():
    # Groups (1, 0) and (5, 1): less their means 0.5, -0.5, 2, -2; mean 0, sum of squares 8.5,
    # variance 8.5/3.
    found = advantages(
        [1, 5, 0, 1], groups=[0, 1, 0, 1], name="batch_normalised", baseline="group_mean", epsilon=0
    )
    np.testing.assert_allclose(found[:, 0], np.array([0.5, 2, -0.5, -2]) / math.sqrt(8.5 / 3))


def test_token_rewards_enter_as_return_to_go():
    # Token rewards -1, -2 and -3: returns 4 - 3, 4 - 2 and 3 - 3. Mean 1, variance 1.
    paid = [[-1, -2], [-3, 0]]
    for name in ("batch_normalised", "gae"):
        found = advantages([4, 3], [2, 1], token_rewards_nt=paid, name=name, epsilon=0)
        np.testing.assert_allclose(found[0], [0, 1], atol=1e-12)
        np.testing.assert_allclose(found[1, 0], -1)
    # The baseline is the group's mean reward alone, 3.5: tokens -2.5, -1.5, -3.5.
    found = advantages(
        [4, 3],
        [2, 1],
        token_rewards_nt=paid,
        name="batch_normalised",
        baseline="group_mean",
        whiten_over="none",
    )
    np.testing.assert_allclose(found[0], [-2.5, -1.5])
    np.testing.assert_allclose(found[1, 0], -3.5)


def test_gae_by_hand():
    # gamma 0.5, lam 0.5; V = 1, 2, 4; R = 8 with the last token, -1 paid for the first.
    # delta_3 = 8 - 4 = 4; delta_2 = 0.5 * 4 - 2 = 0; delta_1 = -1 + 0.5 * 2 - 1 = -1.
    # A_3 = 4; A_2 = 0 + 0.25 * 4 = 1; A_1 = -1 + 0.25 * 1 = -0.75.
    # The second sample has one token: 2 - 0.5; what stands behind its end does not matter.
    options = {"name": "gae", "gamma": 0.5, "lam": 0.5, "whiten_over": "none"}
    values = [[1, 2, 4], [0.5, 99, 99]]
    paid = [[-1, 0, 0], [0, 0, 0]]
    found = advantages([8, 2], [3, 1], values_nt=values, token_rewards_nt=paid, **options)
    np.testing.assert_allclose(found[0], [-0.75, 1, 4])
    np.testing.assert_allclose(found[1, 0], 1.5)
    # Without values: the sample's reward, and a discount that would do nothing is rejected.
    whole = options | {"gamma": 1, "lam": 1}
    np.testing.assert_array_equal(advantages([8, 2], [3, 1], **whole)[:, 0], [8, 2])
    with pytest.raises(ConfigError, match=r"gamma = 0.5: must be 1 without the values of a critic"):
        advantages([8, 2], [3, 1], **options)


@pytest.mark.parametrize("name", ["batch_normalised", "gae"])
@pytest.mark.parametrize("over", ["tokens", "samples"])
def test_whitening_equal_rewards_gives_exactly_zero(name, over):
    found = advantages([0.7] * 8, range(1, 9), name=name, whiten_over=over, epsilon=0.0)
    assert not found.any()


def test_whitening_a_single_sample_is_finite():
    for over in ("tokens", "samples"):
        found = advantages(
            [1],
            [2],
            token_rewards_nt=[[1, 0]],
            name="batch_normalised",
            whiten_over=over,
            epsilon=0,
        )
        assert np.isfinite(found).all() and found[0, 0] > 0 > found[0, 1]
