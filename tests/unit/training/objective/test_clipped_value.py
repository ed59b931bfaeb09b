"""The value of a clipped token: PPO's minimum, as papers and other libraries report it."""

from __future__ import annotations

import numpy as np
import pytest
from objective_harness import data_of, differentiated, modes, slots_of

from rlax_plugin.training.objective.diagnostics import summarise

# One row of one token each, weight 1/8: pi/mu and A, then the value min(r A, clip(r, 0.8, 1.3) A)
# and its gradient by log pi.
CASES = (
    (1.5, 2.0, 2.6, 0.0),  # above 1.3: 1.3 * 2
    (1.5, -2.0, -3.0, -3.0),
    (0.5, 2.0, 1.0, 1.0),
    (0.5, -2.0, -1.6, 0.0),  # below 0.8: 0.8 * -2
    (1.0, 2.0, 2.0, 2.0),
    (4.0, -2.0, -8.0, -8.0),
    (4.0, 0.0, 0.0, 0.0),
    (0.1, 0.0, 0.0, 0.0),
)
TERM = {"name": "clipped_ratio", "low": 0.2, "high": 0.3}
PLAIN = {"preset": "grpo", "aggregation": {"name": "sequence_mean"}}


def loss_of(mode, cases, **term):
    ratios, advantages = (np.float32([[case[i]] for case in cases]) for i in (0, 1))
    behaviour = np.log(np.full(ratios.shape, 0.1, np.float32))
    data = data_of(np.ones(ratios.shape), advantages, behaviour)
    slots = slots_of(**PLAIN, grad_1=TERM | term)
    return mode(differentiated(slots))(behaviour + np.log(ratios), data)


@modes
def test_a_clipped_token_has_the_value_of_ppos_minimum(mode):
    result = loss_of(mode, CASES)
    assert float(-result.loss_sum) == pytest.approx(2.6 - 3 + 1 - 1.6 + 2 - 8, rel=1e-6)
    np.testing.assert_allclose(-result.grad_bt[:, 0], [case[3] for case in CASES], rtol=1e-6)
    report = summarise(result.metrics)
    assert report["objective/clip_fraction_high"] == report["objective/clip_fraction_low"] == 1 / 8
    for case in CASES:  # each alone as well, so that no two errors cancel
        assert float(-loss_of(mode, [case]).loss_sum) == pytest.approx(case[2], rel=1e-6)


@modes
def test_a_dually_clipped_token_has_the_value_c_times_a(mode):
    # max(min(r A, clip(r) A), 3 A) where A < 0; A > 0 knows no dual clip.
    cases = ((4.0, -2.0, -6.0, 0.0), (2.0, -2.0, -4.0, -4.0), (4.0, 2.0, 2.6, 0.0))
    result = loss_of(mode, cases, dual_clip=3.0)
    assert float(-result.loss_sum) == pytest.approx(-6 - 4 + 2.6, rel=1e-6)
    np.testing.assert_allclose(-result.grad_bt[:, 0], [0, -4, 0], atol=1e-6)
    report = summarise(result.metrics)
    assert report["objective/dual_clip_fraction"] == pytest.approx(1 / 3)
    assert report["objective/clip_fraction_high"] == pytest.approx(1 / 3)
    assert report["objective/clip_fraction_low"] == 0
