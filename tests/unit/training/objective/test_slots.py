"""Single slots of the objective, with numbers worked out by hand.

Weights are read off the gradient of ``log_prob`` with A = 1 and agg = 1. The tokens are those of
``objective_harness``: ratios 6, 0.1 and 0.6, 4, 0.25, products 0.6 and 0.6.
"""

import numpy as np
import pytest
from objective_harness import (
    BEHAVIOUR,
    LOGPROBS,
    MASK,
    data_of,
    differentiated,
    jit,
    modes,
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


def eager(function):
    """Compiled, each part is the same: its contract says so."""
    return function


def weights_of(mode, advantages=1.0, data=None, **objective):
    """(dJ/dlogp of a .. e over A, report)."""
    slots = slots_of(**PLAIN | objective)
    data = data_of(MASK, advantages, BEHAVIOUR.astype(np.float32)) | (data or {})
    result = mode(differentiated(slots))(LOGPROBS.astype(np.float32), data)
    return tokens(-result.grad_bt / data["rl_advantages"]), summarise(result.metrics)


# Corrections.

TIS, GEO_1, GEO_2 = "truncated_importance_sampling", 0.6 ** (1 / 2), 0.6 ** (1 / 3)
CORRECTIONS = [
    (TIS, {}, [2, 0.1, 0.6, 2, 0.25], {"tis_truncated": 2}),
    (TIS, {"above_cap": "mask"}, [0, 0.1, 0.6, 0, 0.25], {"tis_masked": 2}),
    (TIS, {"floor": 0.5}, [2, 0.5, 0.6, 2, 0.5], {"tis_truncated": 2, "tis_raised": 2}),
    (TIS, {"floor": 0.5, "below_floor": "mask"}, [2, 0, 0.6, 2, 0], {"tis_low_masked": 2}),
    (TIS, {"cap": None}, [6, 0.1, 0.6, 4, 0.25], {}),
    (TIS, {"per": "sequence", "cap": 3}, [0.6] * 5, {"tis_truncated": 0}),
    (TIS, {"per": "sequence", "cap": 0.5}, [0.5] * 5, {"tis_truncated": 5}),
    (TIS, {"per": "sequence", "cap": 0.5, "above_cap": "mask"}, [0] * 5, {"tis_masked": 5}),
    (TIS, {"per": "geometric", "cap": 0.8}, [GEO_1] * 2 + [0.8] * 3, {"tis_truncated": 3}),
    # 6 > 5; 0.1 and 0.25 < 0.5.
    ("icepop", {}, [0, 0, 1, 1, 0], {"icepop_masked": 3}),
    ("icepop", {"low": 0.05, "high": 6.5}, [1, 1, 1, 1, 1], {"icepop_masked": 0}),
    # Geometric means 0.6^(1/2) = 0.775 and 0.6^(1/3) = 0.843.
    ("sequence_mask", {"low": 0.8}, [0, 0, 1, 1, 1], {"sequence_mask_masked": 2}),
    ("sequence_mask", {"high": 0.8}, [1, 1, 0, 0, 0], {"sequence_mask_masked": 3}),
    ("sequence_mask", {"over": "sum", "low": 0.5}, [1] * 5, {}),
    ("sequence_mask", {"over": "sum", "low": 0.7}, [0] * 5, {"sequence_mask_masked": 5}),
    ("sequence_mask", {"over": "max", "low": None, "high": 5}, [0, 0, 1, 1, 1], {}),
    # K3 of m is m - 1 - log m: 3.208, 1.403 and 0.111, 1.614, 0.636. The means are 2.305 and 0.787.
    ("sequence_mask", {"of": "k3", "high": 1}, [0, 0, 1, 1, 1], {}),
    ("sequence_mask", {"of": "k3", "high": 1.7, "over": "max"}, [0, 0, 1, 1, 1], {}),
    ("sequence_mask", {"of": "k3", "high": 2.3, "over": "sum"}, [0] * 5, {}),
    # K2: 1.605, 2.651; 0.130, 0.961, 0.961.
    ("sequence_mask", {"of": "k2", "high": 2, "over": "max"}, [0, 0, 1, 1, 1], {}),
    # The smallest ratios of the two are 0.1 and 0.25.
    ("veto", {}, [1, 1, 1, 1, 1], {"veto_masked": 0}),
    ("veto", {"threshold": 0.2}, [0, 0, 1, 1, 1], {"veto_masked": 2}),
]


@pytest.mark.parametrize(("name", "options", "expected", "counts"), CORRECTIONS)
def test_correction_by_hand(name, options, expected, counts):
    found, report = weights_of(eager, corrections=[{"name": name, **options}])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for metric, count in counts.items():
        assert report[f"objective/{metric}_fraction"] == pytest.approx(count / 5)


def test_a_mask_may_spare_samples_that_were_good():
    # Both geometric means are above 0.7, and only the second sample has A < 0.
    mask = {"name": "sequence_mask", "low": None, "high": 0.7, "advantages": "negative"}
    found, _ = weights_of(eager, [[1.0], [-1.0]], corrections=[mask])
    np.testing.assert_allclose(found, [1, 1, 0, 0, 0])


def test_corrections_multiply_and_report_under_names_of_their_own():
    # IcePop's band times its ratio: min(m, 5) where it is kept.
    names = [{"name": TIS, "cap": 5}, {"name": "icepop"}, {"name": "veto", "threshold": 0.2}]
    found, report = weights_of(jit, corrections=[*names, {"name": "sequence_mask"}])
    np.testing.assert_allclose(found, [0, 0, 0.6, 4, 0], rtol=1e-6)
    assert report["objective/tis_truncated_fraction"] == pytest.approx(1 / 5)
    assert report["objective/icepop_masked_fraction"] == pytest.approx(3 / 5)
    assert report["objective/veto_masked_fraction"] == pytest.approx(2 / 5)
    assert report["objective/sequence_mask_masked_fraction"] == 0


@modes
def test_corrections_look_at_the_proximal_policy_where_there_is_one(mode):
    # pi_prox/mu = 3 -> 2, pi/pi_prox = 1.1: 2 * 1.1. The second: 0.4/0.1 = 4 is above IcePop's 3.5.
    slots = slots_of(
        "grpo",
        aggregation={"name": "token_mean"},
        old_policy="proximal",
        epochs=2,
        corrections=[{"name": TIS}, {"name": "icepop", "high": 3.5}],
    )
    data = data_of([[1, 1]], 1.0, np.log(np.float32([[0.1, 0.1]])))
    data["rl_old_logprobs"] = np.log(np.float32([[0.3, 0.4]]))
    data["rl_old_known"] = np.int32([[1, 1]])
    result = mode(differentiated(slots))(np.log(np.float32([[0.33, 0.4]])), data)
    np.testing.assert_allclose(-result.grad_bt, [[2.2, 0]], rtol=1e-6)


@pytest.mark.parametrize("name", ["icepop", "sequence_mask", "veto"])
def test_a_masked_token_may_have_any_ratio(name):
    # e^199 is infinite in float32 and 0 * inf is NaN; A < 0 leaves the ratio unclipped.
    data = data_of([[1, 1], [1, 0]], -1.0, np.float32([[-200, -1], [-1, -1]]))
    correction = {"name": name} | ({"threshold": 1e9} if name == "veto" else {})
    slots = slots_of("grpo", corrections=[correction])
    result = jit(differentiated(slots))(np.float32([[-1, -1], [-1, -1]]), data)
    assert np.isfinite(result.loss_sum) and np.isfinite(result.grad_bt).all()
    assert float(result.grad_bt[0, 0]) == 0


# Importance weights.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "one"}, [1, 1, 1, 1, 1]),
        ({"name": "truncated"}, [2, 0.1, 0.6, 2, 0.25]),
        ({"name": "truncated", "cap": 10}, [6, 0.1, 0.6, 4, 0.25]),
        ({"name": "decoupled"}, [5, 0.1, 0.6, 4, 0.25]),
        ({"name": "decoupled", "above_cap": "mask"}, [0, 0.1, 0.6, 4, 0.25]),
        ({"name": "ratio"}, [6, 0.1, 0.6, 4, 0.25]),
        ({"name": "ratio", "per": "sequence"}, [0.6, 0.6, 0.6, 0.6, 0.6]),
        ({"name": "clipped"}, [5, 0.1, 0.6, 4, 0.25]),
        ({"name": "clipped", "high": 0.2, "low": 0.2}, [1.2, 0.8, 0.8, 1.2, 0.8]),
        ({"name": "topr"}, [1, 1, 0.6, 0.6, 0.6]),
        ({"name": "topr", "per": "token"}, [1, 1, 0.6, 1, 0.25]),
        ({"name": "truncated", "per": "sequence", "cap": 0.5}, [0.5] * 5),
        ({"name": "truncated", "floor": 0.5, "cap": 5}, [5, 0.5, 0.6, 4, 0.5]),
        ({"name": "ratio", "per": "geometric"}, [GEO_1] * 2 + [GEO_2] * 3),
        ({"name": "decoupled", "per": "sequence", "cap": None}, [0.6] * 5),
    ],
    ids=str,
)
def test_importance_weight_by_hand(options, expected):
    found, _ = weights_of(eager, [[1.0], [-1.0]], importance_weight=options)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_importance_weights_report_what_they_cut():
    for options, expected in (
        ({"name": "truncated"}, {"truncated_fraction": 2}),
        ({"name": "decoupled"}, {"decoupled_truncated_fraction": 1}),
        ({"name": "decoupled", "above_cap": "mask"}, {"decoupled_masked_fraction": 1}),
        (
            {"name": "clipped", "low": 0.5},
            {"weight_clip_fraction_high": 1, "weight_clip_fraction_low": 2},
        ),
        ({"name": "clipped"}, {"weight_clip_fraction_low": 0}),
        ({"name": "topr"}, {"topr_truncated_fraction": 0}),
        ({"name": "topr", "per": "token"}, {"topr_truncated_fraction": 1}),
    ):
        _, report = weights_of(jit, [[1.0], [-1.0]], importance_weight=options)
        for name, count in expected.items():
            assert report[f"objective/{name}"] == pytest.approx(count / 5), options


def test_topr_may_look_at_the_sign_of_the_reward():
    topr = {"name": "topr", "per": "token", "split": "reward"}
    rewards = {"rl_total_reward": np.float32([[0, 0, 0], [2, 2, 2]])}
    found, _ = weights_of(eager, data=rewards, importance_weight=topr)
    np.testing.assert_allclose(found, [1, 0.1, 1, 1, 1], rtol=1e-6)


# Terms.


@modes
def test_gspo_clips_whole_sequences(mode):
    # s = (1.5 * 1.5)^(1/2) = 1.5 and 0.5. Bounds 0.8 .. 1.2. A = 1, s = 1.5: clipped, 1.2. A = -1,
    # s = 1.5: -1.5, gradient -1.5/2 per token. A = -1, s = 0.5: clipped, -0.8. A = 1, s = 0.5: 0.5,
    # gradient 0.5/2. J with 1/(N len): 1.2 - 1.5 - 0.8 + 0.5 = -0.6, over 4 sequences.
    logprobs = np.log(np.float32([[0.3, 0.3], [0.3, 0.3], [0.1, 0.1], [0.1, 0.1]]))
    data = data_of(
        np.ones((4, 2)), [[1], [-1], [-1], [1]], np.log(np.full((4, 2), 0.2, np.float32))
    )
    for name in ("sequence_ratio", "sequence_ratio_token"):
        slots = slots_of("gspo", grad_1={"name": name, "low": 0.2, "high": 0.2})
        result = mode(differentiated(slots))(logprobs, data)
        expected = np.repeat([[0], [-0.75], [0], [0.25]], 2, axis=1)
        np.testing.assert_allclose(-result.grad_bt, expected, rtol=1e-6)
        assert float(-result.loss_sum) == pytest.approx(-0.6)
        report = summarise(result.metrics)
        assert report["objective/clip_fraction_high"] == 0.25
        assert report["objective/clip_fraction_low"] == 0.25


@modes
def test_gspo_token_keeps_advantages_of_tokens_apart(mode):
    # s = (2 * 0.5)^(1/2) = 1, A = 3, 1: J = (3 + 1)/2. Token form: gradient A_t s/2 = 1.5, 0.5.
    # Sequence form: each token's term holds s, so that both get (3 + 1)/2 * s/2 = 1.
    logprobs = np.log(np.float32([[0.4, 0.1]]))
    data = data_of([[1, 1]], [[3.0, 1.0]], np.log(np.float32([[0.2, 0.2]])))
    for preset, gradient in (("gspo", [[1, 1]]), ("gspo_token", [[1.5, 0.5]])):
        result = mode(differentiated(slots_of(preset)))(logprobs, data)
        np.testing.assert_allclose(-result.grad_bt, gradient, rtol=1e-6)
        assert float(-result.loss_sum) == pytest.approx(2)


@modes
def test_none_is_no_term(mode):
    found, _ = weights_of(mode, grad_1={"name": "none"}, grad_2={"name": "log_prob"})
    np.testing.assert_allclose(found, 1)  # grad_2 is not multiplied by A


# Aggregations; ``test_counts.py`` compares the others with numpy.


def test_a_truncated_weight_rejects_nothing():
    objective = {"aggregation": {"name": "token_mean", "count": "kept"}}
    correction = {"name": TIS, "cap": 2, "above_cap": "mask"}
    slots = slots_of(**PLAIN | objective, corrections=[correction])
    data = data_of(MASK, 1.0, BEHAVIOUR.astype(np.float32))
    assert float(differentiated(slots)(LOGPROBS.astype(np.float32), data).weight) == 5


def aggregation_of(aggregation):
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
    np.testing.assert_allclose(aggregation_of({"name": "prompt_mean"}), [1 / 10] * 5 + [1 / 4] * 2)
    divided = {"name": "constant_length", "max_tokens": 4}
    np.testing.assert_allclose(aggregation_of(divided), [1 / 16] * 7)
    np.testing.assert_allclose(aggregation_of(divided | {"divisor": "length"}), [1 / 4] * 7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"corrections": [{"name": TIS, "floor": 3.0}]},
            "rlax.objective.corrections.0.floor = 3.0: must not exceed cap = 2.0",
        ),
        (
            {"corrections": [{"name": "icepop", "low": 3.0, "high": 2.0}]},
            "rlax.objective.corrections.0.low = 3.0: must not exceed high = 2.0",
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
