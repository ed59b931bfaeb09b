"""Single slots of the objective, with numbers worked out by hand.

Weights are read off the gradient of ``log_prob`` with A = 1 and agg = 1. The tokens are those of
``objective_harness``: ratios 6, 0.1 and 0.6, 4, 0.25, products 0.6 and 0.6.
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
    modes,
    slots_of,
    tokens,
)

from rlax_plugin.base.errors import ConfigError
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


def weights_of(mode, advantages=1.0, **objective):
    """(dJ/dlogp of a .. e over A, report)."""
    slots = slots_of(**PLAIN | objective)
    data = data_of(MASK, advantages, BEHAVIOUR.astype(np.float32))
    result = mode(differentiated(slots))(LOGPROBS.astype(np.float32), data)
    return tokens(-result.grad_bt / data["rl_advantages"]), summarise(result.metrics)


# Corrections.

TIS = "truncated_importance_sampling"
CORRECTIONS = [
    (TIS, {}, [2, 0.1, 0.6, 2, 0.25], "tis_truncated_fraction", 2),
    (TIS, {"cap": 5}, [5, 0.1, 0.6, 4, 0.25], "tis_truncated_fraction", 1),
    (TIS, {"above_cap": "mask"}, [0, 0.1, 0.6, 0, 0.25], "tis_masked_fraction", 2),
    # 6 > 5; 0.1 and 0.25 < 0.5.
    ("icepop", {}, [0, 0, 1, 1, 0], "icepop_masked_fraction", 3),
    ("icepop", {"low": 0.05, "high": 6.5}, [1, 1, 1, 1, 1], "icepop_masked_fraction", 0),
    # Geometric means 0.6^(1/2) = 0.775 and 0.6^(1/3) = 0.843.
    ("sequence_mask", {}, [1, 1, 1, 1, 1], "sequence_mask_masked_fraction", 0),
    ("sequence_mask", {"low": 0.8}, [0, 0, 1, 1, 1], "sequence_mask_masked_fraction", 2),
    ("sequence_mask", {"high": 0.8}, [1, 1, 0, 0, 0], "sequence_mask_masked_fraction", 3),
    # The smallest ratios of the two are 0.1 and 0.25.
    ("veto", {}, [1, 1, 1, 1, 1], "veto_masked_fraction", 0),
    ("veto", {"threshold": 0.2}, [0, 0, 1, 1, 1], "veto_masked_fraction", 2),
]


@pytest.mark.parametrize(("name", "options", "expected", "metric", "count"), CORRECTIONS)
def test_correction_by_hand(name, options, expected, metric, count):
    found, report = weights_of(eager, corrections=[{"name": name, **options}])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert report[f"objective/{metric}"] == pytest.approx(count / 5)


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


@pytest.mark.parametrize("name", ["icepop", "sequence_mask"])
def test_a_band_must_not_be_empty(name):
    with pytest.raises(ConfigError) as error:
        slots_of("grpo", corrections=[{"name": name, "low": 3.0, "high": 2.0}])
    assert str(error.value) == (
        "rlax.objective.corrections.0.low = 3.0: must not exceed high = 2.0"
    )


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


# Aggregations.


@pytest.mark.parametrize(
    ("options", "per_token", "weight"),
    [
        ({"name": "sequence_mean"}, [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3], 2),
        ({"name": "token_mean"}, [1] * 5, 5),
        ({"name": "sequence_sum"}, [1] * 5, 2),
        ({"name": "constant_length"}, [1 / 4] * 5, 2),  # rlax.rollouts.max_new_tokens
        ({"name": "constant_length", "max_tokens": 8}, [1 / 8] * 5, 2),
    ],
    ids=str,
)
def test_aggregation_by_hand(options, per_token, weight):
    # A third row without a token that trains counts for nothing.
    slots = slots_of(**PLAIN | {"aggregation": options})
    behaviour = np.vstack([BEHAVIOUR, [[-1.0] * 3]]).astype(np.float32)
    data = data_of(np.vstack([MASK, [[0] * 3]]), 1.0, behaviour)
    result = differentiated(slots)(behaviour, data)
    np.testing.assert_allclose(tokens(-result.grad_bt[:2]), per_token, rtol=1e-6)
    assert not np.asarray(result.grad_bt)[2].any() and float(result.weight) == weight
