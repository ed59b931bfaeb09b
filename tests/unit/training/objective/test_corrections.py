"""Corrections of tokens and of sequences, and denominators, with numbers worked out by hand.

The tokens are those of ``objective_harness``: m = 6, 0.1 and 0.6, 4, 0.25; the products of both
sequences are 0.6, the geometric means 0.6^(1/2) and 0.6^(1/3).
"""

from __future__ import annotations

import numpy as np
import pytest
from objective_harness import (
    BEHAVIOUR,
    LOGPROBS,
    MASK,
    data_of,
    differentiated,
    jit,
    slots_of,
    tokens,
)

from rlax_plugin.base.errors import ConfigError
from rlax_plugin.testing.objectives import evaluate_objective
from rlax_plugin.training.objective.diagnostics import summarise

PLAIN = {
    "aggregation": {"name": "token_mean"},
    "advantage": {"name": "leave_one_out"},
    "importance_weight": {"name": "one"},
    "grad_1": {"name": "log_prob"},
}
TIS, GEO_1, GEO_2 = "truncated_importance_sampling", 0.6 ** (1 / 2), 0.6 ** (1 / 3)


def result_of(advantages=1.0, mode=lambda f: f, **objective):
    slots = slots_of(**PLAIN | objective)
    data = data_of(MASK, advantages, BEHAVIOUR.astype(np.float32))
    return mode(differentiated(slots))(LOGPROBS.astype(np.float32), data)


CORRECTIONS = [
    (TIS, {"floor": 0.5}, [2, 0.5, 0.6, 2, 0.5], {"tis_truncated": 2, "tis_raised": 2}),
    (TIS, {"floor": 0.5, "below_floor": "mask"}, [2, 0, 0.6, 2, 0], {"tis_low_masked": 2}),
    (TIS, {"cap": None}, [6, 0.1, 0.6, 4, 0.25], {}),
    (TIS, {"per": "sequence", "cap": 3}, [0.6] * 5, {"tis_truncated": 0}),
    (TIS, {"per": "sequence", "cap": 0.5}, [0.5] * 5, {"tis_truncated": 5}),
    (TIS, {"per": "sequence", "cap": 0.5, "above_cap": "mask"}, [0] * 5, {"tis_masked": 5}),
    (TIS, {"per": "geometric", "cap": 0.8}, [GEO_1] * 2 + [0.8] * 3, {"tis_truncated": 3}),
    ("sequence_mask", {"over": "sum", "low": 0.5}, [1] * 5, {}),
    ("sequence_mask", {"over": "sum", "low": 0.7}, [0] * 5, {"sequence_mask_masked": 5}),
    ("sequence_mask", {"over": "max", "low": None, "high": 5}, [0, 0, 1, 1, 1], {}),
    ("sequence_mask", {"low": None, "high": None}, [1] * 5, {}),
    # K3 of m is m - 1 - log m: 3.208, 1.403 and 0.111, 1.614, 0.636. The means are 2.305 and 0.787.
    ("sequence_mask", {"of": "k3", "high": 1}, [0, 0, 1, 1, 1], {}),
    ("sequence_mask", {"of": "k3", "high": 1.7, "over": "max"}, [0, 0, 1, 1, 1], {}),
    ("sequence_mask", {"of": "k3", "high": 2.3, "over": "sum"}, [0] * 5, {}),
    # K2: 1.605, 2.651; 0.130, 0.961, 0.961.
    ("sequence_mask", {"of": "k2", "high": 2, "over": "max"}, [0, 0, 1, 1, 1], {}),
]


@pytest.mark.parametrize(("name", "options", "expected", "counts"), CORRECTIONS)
def test_correction_by_hand(name, options, expected, counts):
    result = result_of(corrections=[{"name": name, **options}])
    np.testing.assert_allclose(tokens(-result.grad_bt), expected, rtol=1e-6)
    report = summarise(result.metrics)
    for metric, count in counts.items():
        assert report[f"objective/{metric}_fraction"] == pytest.approx(count / 5)


def test_a_mask_may_spare_samples_that_were_good():
    # Both geometric means are above 0.7, and only the second sample has A < 0.
    mask = {"name": "sequence_mask", "low": None, "high": 0.7, "advantages": "negative"}
    result = result_of([[1.0], [-1.0]], corrections=[mask])
    np.testing.assert_allclose(tokens(-result.grad_bt), [1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "truncated", "per": "sequence", "cap": 0.5}, [0.5] * 5),
        ({"name": "truncated", "floor": 0.5, "cap": 5}, [5, 0.5, 0.6, 4, 0.5]),
        ({"name": "ratio", "per": "geometric"}, [GEO_1] * 2 + [GEO_2] * 3),
        ({"name": "decoupled", "per": "sequence", "cap": None}, [0.6] * 5),
    ],
    ids=str,
)
def test_importance_weight_by_hand(options, expected):
    result = result_of(importance_weight=options)
    np.testing.assert_allclose(tokens(-result.grad_bt), expected, rtol=1e-6)


def test_topr_may_look_at_the_sign_of_the_reward():
    slots = slots_of(
        **PLAIN | {"importance_weight": {"name": "topr", "per": "token", "split": "reward"}}
    )
    data = data_of(MASK, 1.0, BEHAVIOUR.astype(np.float32))
    data["rl_total_reward"] = np.float32([[0, 0, 0], [2, 2, 2]])
    result = differentiated(slots)(LOGPROBS.astype(np.float32), data)
    np.testing.assert_allclose(tokens(-result.grad_bt), [1, 0.1, 1, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("mode", [lambda f: f, jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("aggregation", "per_token", "weight"),
    [
        # icepop keeps 0.6 and 4 of the second sequence.
        ({"name": "token_mean"}, 1, 2),
        ({"name": "sequence_mean"}, 1 / 2, 1),
        ({"name": "sequence_sum"}, 1, 1),
        ({"name": "constant_length", "max_tokens": 8}, 1 / 8, 1),
    ],
    ids=str,
)
def test_denominators_may_count_what_a_rejection_leaves(aggregation, per_token, weight, mode):
    objective = {
        "aggregation": {**aggregation, "count": "kept"},
        "corrections": [{"name": "icepop"}],
    }
    result = result_of(mode=mode, **objective)
    expected = np.array([0, 0, 1, 1, 0]) * per_token
    np.testing.assert_allclose(tokens(-result.grad_bt), expected, rtol=1e-6)
    assert float(result.weight) == weight
    assert summarise(result.metrics)["objective/icepop_masked_fraction"] == pytest.approx(3 / 5)


def test_a_truncated_weight_rejects_nothing():
    objective = {"aggregation": {"name": "token_mean", "count": "kept"}}
    correction = {"name": TIS, "cap": 2, "above_cap": "mask"}
    assert float(result_of(**objective, corrections=[correction]).weight) == 5


def weights_of(aggregation):
    """agg of four samples in groups of two, with 2, 3, 1 and 1 tokens."""
    mask = [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 0, 0]]
    zeros = np.zeros((4, 3))
    found = evaluate_objective(
        {"preset": "reinforce", **PLAIN, "aggregation": aggregation},
        logprobs_bt=zeros,
        behaviour_logprobs_bt=zeros,
        rewards_b=[1, 0, 1, 0],
        mask_bt=mask,
        group_size=2,
    )
    return found.weights_bt[np.array(mask) > 0]


def test_aggregations_of_the_whole_mini_batch_by_hand():
    np.testing.assert_allclose(weights_of({"name": "prompt_mean"}), [1 / 10] * 5 + [1 / 4] * 2)
    divided = {"name": "constant_length", "max_tokens": 4}
    np.testing.assert_allclose(weights_of(divided), [1 / 16] * 7)
    np.testing.assert_allclose(weights_of(divided | {"divisor": "length"}), [1 / 4] * 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"corrections": [{"name": TIS, "floor": 3.0}]},
            "rlax.objective.corrections.0.floor = 3.0: must not exceed cap = 2.0",
        ),
        (
            {"corrections": [{"name": "sequence_mask", "of": "k3", "low": 0.1}]},
            "rlax.objective.corrections.0.low = 0.1: has no effect with of: k3: set high alone",
        ),
        (
            {"aggregation": {"name": "constant_length", "divisor": "length", "count": "kept"}},
            "rlax.objective.aggregation.count = 'kept': has no effect with divisor: length",
        ),
    ],
)
def test_options_that_contradict_each_other(changes, message):
    with pytest.raises(ConfigError) as error:
        slots_of("reinforce", importance_weight={"name": "one"}, **changes)
    assert message in str(error.value)
