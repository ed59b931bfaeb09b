"""Advantages as libraries compute them, with numbers worked out by hand."""

import numpy as np
import pytest
from objective_harness import advantages_of, slots_of

ROOT = np.sqrt(2.0)


def advantages(rewards, lengths=None, groups=None, **options):
    more = {
        name: options.pop(name)
        for name in ("token_rewards_nt", "paid_at_tokens_n", "turns_nt", "values_nt")
        if name in options
    }
    lengths = [1] * len(rewards) if lengths is None else lengths
    return advantages_of(slots_of("grpo", advantage=options), rewards, lengths, groups, **more)


def test_leave_one_out_may_divide_by_the_std_of_the_others():
    # The others of 1 are 2 and 4, mean 3, std sqrt(2); of 2: 2.5, 3/sqrt(2); of 4: 1.5, 1/sqrt(2).
    found = advantages([1, 2, 4], name="leave_one_out", scale="std_of_others", epsilon=0)
    np.testing.assert_allclose(found, [-2 / ROOT, -0.5 * ROOT / 3, 2.5 * ROOT])
    # The others of the first are equal, so that it is not divided: NeMo-RL.
    found = advantages([1, 0, 0, 0], name="leave_one_out", scale="std_of_others", epsilon=0)
    np.testing.assert_allclose(found, [1, *[-1 / 3 * np.sqrt(3)] * 3])
    assert not advantages([0.7] * 7, name="leave_one_out", scale="std_of_others").any()


def test_leave_one_out_may_be_normalised_over_the_batch():
    # 1, -1 and 2, -2: the std with ddof 1 is sqrt(10/3).
    found = advantages(
        [1, 0, 3, 1], groups=[0, 0, 1, 1], name="leave_one_out", scale="batch", epsilon=0
    )
    np.testing.assert_allclose(found, np.array([1, -1, 2, -2]) / np.sqrt(10 / 3))
    # Five samples: the mean of the advantages is not 0 only for groups of different sizes.
    found = advantages(
        [1, 0, 3, 0, 0], groups=[0, 0, 1, 1, 1], name="leave_one_out", scale="batch", epsilon=1e-4
    )
    plain = np.array([1, -1, 3, -1.5, -1.5])
    np.testing.assert_allclose(found, plain / (plain.std(ddof=1) + 1e-4))


def test_the_std_may_be_that_of_the_batchs_raw_rewards():
    # Mean 1.25, squares 0.0625 + 1.5625 + 3.0625 + 0.0625 = 4.75, over 3.
    found = advantages([1, 0, 3, 1], groups=[0, 0, 1, 1], std_of="batch", epsilon=1e-4)
    np.testing.assert_allclose(found, np.array([0.5, -0.5, 1, -1]) / (np.sqrt(4.75 / 3) + 1e-4))
    found = advantages([0.7] * 4, groups=[0, 0, 1, 1], std_of="batch")
    assert not found.any()


KL = {"token_rewards_nt": np.array([[-0.5, 0.0], [-0.25, -0.25]]), "paid_at_tokens_n": np.zeros(2)}
PLAIN = {"name": "batch_normalised", "whiten_over": "none"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The KL as return: what this and later tokens pay.
        ({}, [[0.5, 1], [-0.5, -0.25]]),
        ({"credit": "own"}, [[0.5, 1], [-0.25, -0.25]]),
        ({"credit": "sample"}, [[0.5, 0.5], [-0.5, -0.5]]),
        # The group's mean of R is 0.5; of R + KL it is 0.
        ({"baseline": "group_mean"}, [[0, 0.5], [-1, -0.75]]),
        ({"baseline": "group_mean", "credit": "own"}, [[0, 0.5], [-0.75, -0.75]]),
        ({"baseline": "group_mean", "credit": "sample"}, [[0.5, 0.5], [-0.5, -0.5]]),
        # The std of 1 and 0 is 1/sqrt(2).
        (
            {"baseline": "group_normalised", "group_epsilon": 0, "credit": "own"},
            [[1 / ROOT - 0.5, 1 / ROOT], [-1 / ROOT - 0.25, -1 / ROOT - 0.25]],
        ),
    ],
    ids=str,
)
def test_kl_in_the_reward_by_hand(options, expected):
    found = advantages([1, 0], [2, 2], **PLAIN, **options, **KL)
    np.testing.assert_allclose(np.broadcast_to(found, (2, 2)), expected, atol=1e-12)


def test_a_groups_mean_counts_what_is_paid_at_tokens():
    # 1 and 2 at the first token, and nothing: mean 1.5. To come: 3 - 1.5, then 1 - 1.5.
    paid = {"token_rewards_nt": np.array([[2.0, 0.0], [0.0, 0.0]])}
    paid["paid_at_tokens_n"] = np.array([2.0, 0.0])
    found = advantages([1, 0], [2, 2], **PLAIN, baseline="group_mean", **paid)
    np.testing.assert_allclose(found, [[1.5, -0.5], [-1.5, -1.5]])


def test_whitening_of_areal_and_of_its_sequences():
    # x = 1 (two tokens), 0: mean 2/3, variance with ddof 1: (2/9 + 4/9) / 2 = 1/3.
    std = np.sqrt(1 / 3) + 0.5
    whitened = {"name": "batch_normalised", "epsilon": 0.5, "epsilon_rule": "add_to_std"}
    found = advantages([1, 0], [2, 1], **whitened)
    np.testing.assert_allclose(found[:, 0], [1 / 3 / std, -2 / 3 / std])
    paid = {"token_rewards_nt": np.array([[0.0, 3.0]]), "paid_at_tokens_n": np.array([3.0])}
    mean = {**PLAIN, "credit": "own", "average": "sample"}
    np.testing.assert_allclose(advantages([1], [2], **mean, **paid), [[2.5, 2.5]])


# Two turns of 2 and 1 tokens, paid 1 and 2 at them and 4 at the end; and one turn of 3 tokens.
TURNS = {
    "turns_nt": np.array([[1, 1, 2], [1, 1, 1]]),
    "token_rewards_nt": np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]]),
    "paid_at_tokens_n": np.array([3.0, 0.0]),
}


def test_discounted_turns_without_a_critic():
    options = {"name": "gae", "over": "turns", "whiten_over": "none", "gamma": 0.5}
    found = advantages([4, 1], [3, 3], **options, **TURNS)
    np.testing.assert_allclose(found, [[4, 4, 6], [1, 1, 1]])  # 1 + 0.5 * 6


def test_turns_are_compared_within_their_group():
    options = {"name": "turn_normalised", "scale_by_std": False}
    # Returns 7, 6 and 1. Turn 1: 7 and 1, mean 4; turn 2 has nothing to be compared with.
    found = advantages([4, 1], [3, 3], **options, **TURNS)
    np.testing.assert_allclose(found, [[3, 3, 0], [-3, -3, -3]])
    # All turns: mean 14/3.
    found = advantages([4, 1], [3, 3], **options, among="all_turns", **TURNS)
    np.testing.assert_allclose(found, [[7 / 3, 7 / 3, 4 / 3], [-11 / 3] * 3])
    # Of another group each is alone.
    assert not advantages([4, 1], [3, 3], [0, 1], **options, **TURNS).any()
    # 3 and -3 have the std 3 sqrt(2).
    found = advantages([4, 1], [3, 3], name="turn_normalised", epsilon=0, **TURNS)
    np.testing.assert_allclose(found[:, 0], [1 / ROOT, -1 / ROOT])
