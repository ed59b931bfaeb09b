"""Bounds, caps and coefficients that change from step to step, with numbers worked out by hand."""

import numpy as np
import pytest
from objective_harness import data_of, differentiated, jit, modes, slots_of

from rlax_plugin.base.errors import ConfigError, PluginError
from rlax_plugin.training.objective.loss import TokenOutputs, make_loss

BEHAVIOUR = np.full((1, 2), -1.0, np.float32)
RATIOS = np.array([[1.2, 0.7]], np.float32)
OUTPUTS = TokenOutputs(BEHAVIOUR, np.zeros_like(BEHAVIOUR))
FALLS = {"from": 0.4, "to": 0.1, "steps": 3}  # 0.4, 0.3, 0.2, 0.1


def data_at(step, advantage=1.0, **arrays):
    data = data_of([[1, 1]], [[advantage, advantage]], BEHAVIOUR)
    return data | {"rl_step": np.full((1, 2), step, np.int32)} | arrays


def loss_at(function, step, **arrays):
    logprobs_bt = (BEHAVIOUR + np.log(RATIOS)).astype(np.float32)
    return function(logprobs_bt, data_at(step, **arrays))


@modes
def test_a_clip_bound_is_that_of_the_step(mode) -> None:
    """Returns the loss for A = 1: -(min(1.2, 1 + high) + 0.7)."""
    function = mode(differentiated(slots_of("grpo", grad_1={"high": FALLS})))
    for step, first, slope in ((1, 1.2, 1.2), (2, 1.2, 1.2), (4, 1.1, 0), (9, 1.1, 0)):
        found = loss_at(function, step)
        assert float(found.loss_sum) / float(found.weight) == pytest.approx(-(first + 0.7) / 2)
        clipped = float(found.metrics["objective/clip_fraction_high"])
        assert clipped == (1 if slope == 0 else 0)
        # d r / d log pi = r, of the token that is not clipped.
        grad = np.asarray(found.grad_bt) * float(found.weight)
        np.testing.assert_allclose(grad / grad[0, 1] * -0.7, [[-slope, -0.7]], rtol=1e-5)


@pytest.mark.parametrize(
    ("objective", "losses"),
    [
        # is = min(r, cap), log pi = -1 + log r: the sum of is * log pi.
        (
            {"preset": "aipo", "importance_weight": {"cap": {"from": 1, "to": 0.5, "steps": 2}}},
            {1: 1.0 * np.log(1.2) - 1 + 0.7 * (np.log(0.7) - 1)}
            | {3: 0.5 * (np.log(1.2) - 1 + np.log(0.7) - 1)},
        ),
        # is = clip(r, 1 - low, 1 + high) with 1 - low = 0.6, 0.9 and 1 + high = 1.4, 1.1
        (
            {"preset": "cispo", "importance_weight": {"low": FALLS, "high": FALLS}},
            {1: 1.2 * (np.log(1.2) - 1) + 0.7 * (np.log(0.7) - 1)}
            | {4: 1.1 * (np.log(1.2) - 1) + 0.9 * (np.log(0.7) - 1)},
        ),
    ],
)
def test_a_cap_is_that_of_the_step(objective, losses) -> None:
    function = jit(differentiated(slots_of(aggregation={"name": "token_mean"}, **objective)))
    for step, expected in losses.items():
        found = loss_at(function, step)
        assert float(found.loss_sum) == pytest.approx(-expected, rel=1e-5), step


@modes
def test_kl_and_entropy_coefficients_are_those_of_the_step(mode) -> None:
    """With A = 0 and k2 = d^2 / 2 of d = log r + 0.5 the sum is beta k2 - c H."""
    kl = {"coefficient": FALLS, "estimator": "k2"}
    slots = slots_of("dapo", kl=kl, entropy_coefficient={"from": 0, "to": 1, "steps": 2})
    outputs = TokenOutputs(BEHAVIOUR + np.log(RATIOS), np.full_like(BEHAVIOUR, 1.5))
    k2 = ((np.log(1.2) + 0.5) ** 2 + (np.log(0.7) + 0.5) ** 2) / 2
    loss = mode(make_loss(slots))
    for step, beta, bonus in ((1, 0.4, 0), (2, 0.3, 0.5), (3, 0.2, 1), (7, 0.1, 1)):
        data = data_at(step, advantage=0.0, rl_reference_logprobs=BEHAVIOUR - 0.5)
        assert float(loss(outputs, data)[0]) == pytest.approx(beta * k2 - bonus * 3, rel=1e-5)


def test_all_steps_share_one_program() -> None:
    slots = slots_of(
        "grpo",
        grad_1={"high": FALLS, "low": FALLS, "dual_clip": {"from": 9, "to": 3, "steps": 5}},
        corrections=[
            {"name": "truncated_importance_sampling", "cap": FALLS},
            {"name": "icepop", "low": {"from": 0.1, "to": 0.5, "steps": 3}, "high": 5},
            {"name": "veto", "threshold": {"from": 1e-4, "to": 1e-2, "steps": 3}},
        ],
        kl={"coefficient": FALLS},
        entropy_coefficient=FALLS,
        old_policy="proximal",
    )
    function, traces = differentiated(slots), []

    def traced(logprobs_bt, data):
        traces.append(logprobs_bt)
        return function(logprobs_bt, data)

    compiled = jit(traced)
    losses = {
        float(loss_at(compiled, step, rl_reference_logprobs=BEHAVIOUR - 0.5).loss_sum)
        for step in (1, 2, 3, 4)
    }
    assert len(losses) == 4
    assert len(traces) == 1


def test_a_number_is_the_same_program_as_before_there_were_schedules() -> None:
    """A loss without schedules does not read the step, which a batch may lack."""
    data = {name: a for name, a in data_at(1).items() if name != "rl_step"}
    make_loss(slots_of("dapo"))(OUTPUTS, data)
    with pytest.raises(PluginError, match="reads rl_step"):
        make_loss(slots_of("dapo", grad_1={"high": FALLS}))(OUTPUTS, data)


@pytest.mark.parametrize(
    ("objective", "key", "reason"),
    [
        (
            {"grad_1": {"high": {"from": 0.2, "to": -0.1, "steps": 5}}},
            "grad_1.high.to",
            "greater than 0",
        ),
        (
            {"corrections": [{"name": "icepop", "low": {"from": 0, "to": 6, "steps": 3}}]},
            "corrections.0.low",
            "must not exceed high = 5.0, and does at step 4",
        ),
        (
            {"kl": {"coefficient": 0.0, "adaptive": {"target": 6}}},
            "kl.coefficient",
            "must be above 0",
        ),
        (
            {"kl": {"coefficient": FALLS, "adaptive": {"target": 6}}},
            "kl.coefficient",
            "must be a number",
        ),
    ],
)
def test_bad_schedules_of_an_objective_are_refused(objective, key, reason) -> None:
    with pytest.raises(ConfigError) as error:
        slots_of("dapo", **objective)
    assert error.value.key == f"rlax.objective.{key}"
    assert reason in str(error.value)


def test_a_config_keeps_what_a_preset_says_beside_a_schedule() -> None:
    kl = slots_of("grpo", kl={"coefficient": FALLS}).algorithm.kl
    assert kl.at(2).coefficient == pytest.approx(0.3)
    assert (kl.estimator, kl.penalises) == ("k3", True)
    assert not slots_of("dapo").needs_reference
