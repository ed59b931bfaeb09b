"""The sum that the slots enter: resolving, the loss and its diagnostics."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from objective_harness import data_of, differentiated, jit, random_case, slots_of

from rlax_plugin.base.errors import PluginError
from rlax_plugin.config import RlaxSection
from rlax_plugin.training.objective.diagnostics import (
    GAP_EDGES,
    GROUP_GAPS,
    gap_quantile,
    summarise,
)
from rlax_plugin.training.objective.loss import TokenOutputs, make_loss, resolve


@functools.cache
def grpo():
    return jit(differentiated(slots_of("grpo")))


def example():
    """Two samples of lengths 2 and 1; ratios 1.5, 0.5 (A = 1) and 0.5 (A = -2)."""
    behaviour = np.log(np.float32([[0.2, 0.4, 1.0], [0.6, 1.0, 1.0]]))
    logprobs = np.log(np.float32([[0.3, 0.2, 1.0], [0.3, 1.0, 1.0]]))
    return logprobs, data_of([[1, 1, 0], [1, 0, 0]], [[1.0], [-2.0]], behaviour)


def test_diagnostics_by_hand():
    result = grpo()(*example())
    report = summarise(result.metrics)
    assert report["objective/clip_fraction_high"] == pytest.approx(1 / 3)
    assert report["objective/clip_fraction_low"] == pytest.approx(1 / 3)
    assert report["objective/ratio"] == pytest.approx((1.5 + 0.5 + 0.5) / 3)
    assert report["objective/advantage"] == pytest.approx((1 + 1 - 2) / 3, abs=1e-6)
    assert report["objective/advantage_abs"] == pytest.approx(4 / 3)
    # k1 = -log w, k3 = w - 1 - log w, for 1.5 and twice 0.5.
    k1 = (-math.log(1.5) + 2 * math.log(2)) / 3
    assert report["objective/kl_k1"] == pytest.approx(k1, rel=1e-5)
    k3 = (0.5 - math.log(1.5) + 2 * (-0.5 + math.log(2))) / 3
    assert report["objective/kl_k3"] == pytest.approx(k3, rel=1e-5)
    # Sums 2.5 and 2.75 of w and w^2.
    assert report["objective/chi_squared"] == pytest.approx(2.75 / 3 - 1)
    assert report["objective/effective_sample_size"] == pytest.approx(2.5**2 / (3 * 2.75))
    # exp(mean log mu - mean log pi) - 1 = (1.5 * 0.5 * 0.5)^(-1/3) - 1.
    gap = 0.375 ** (-1 / 3) - 1
    assert report["objective/perplexity_gap"] == pytest.approx(gap, rel=1e-5)
    assert (report["objective/tokens"], report["objective/sequences"]) == (3, 2)


def test_entropy_is_a_diagnostic_and_a_bonus():
    # J gains 0.5 * agg * H: agg 1/2, 1/2 and 1; H = 1, 2 and 4.
    logprobs, data = example()
    entropy = jnp.array([[1.0, 2, 9], [4, 9, 9]])
    plain = make_loss(slots_of("grpo"))(TokenOutputs(logprobs, entropy), data)
    bonus = slots_of("grpo", entropy_coefficient=0.5)
    rewarded = make_loss(bonus)(TokenOutputs(logprobs, entropy), data)
    assert float(plain[0] - rewarded[0]) == pytest.approx(0.5 * (0.5 + 1 + 4))
    assert summarise(plain[2])["objective/entropy"] == pytest.approx(7 / 3)

    def total(entropy):
        return make_loss(bonus)(TokenOutputs(logprobs, entropy), data)[0]

    np.testing.assert_allclose(jax.grad(total)(entropy), [[-0.25, -0.25, 0], [-0.5, 0, 0]])


def test_padding_changes_no_bit_in_eager_mode():
    # Under jit XLA turns x * mask into a selection, which would hide 0 * NaN.
    logprobs, data = random_case(3)
    padding = data["rl_mask"] == 0
    dirty = data | {
        name: np.where(padding, np.nan, data[name]).astype(np.float32)
        for name in ("rl_advantages", "rl_behaviour_logprobs")
    }
    dirty["rl_staleness"] = np.where(padding, 7, data["rl_staleness"])
    dirty["targets_segmentation"] = np.where(padding, 1, data["targets_segmentation"])
    for preset in ("dapo", "gspo", "topr"):
        run = differentiated(slots_of(preset, corrections=[{"name": "sequence_mask"}]))
        clean = run(logprobs, data)
        again = run(np.where(padding, np.nan, logprobs), dirty)
        for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(again), strict=True):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
        assert np.isfinite(again.grad_bt).all()


def test_the_gap_is_counted_on_fresh_tokens_only_and_quantiles_bound_it():
    # 20 tokens: 18 gaps of 1e-6, one of 1e-3, and one stale token with a gap of 1.
    gaps = np.array([[1e-6] * 18 + [1e-3, 1.0]])
    data = data_of(np.ones((1, 20)), 1.0, np.zeros((1, 20), np.float32))
    data["rl_staleness"][0, -1] = 2
    metrics = grpo()(np.float32(-gaps), data).metrics
    report = summarise(metrics)
    assert report["logprob_gap/tokens"] == 19
    assert report["logprob_gap/mean"] == pytest.approx((18e-6 + 1e-3) / 19, rel=1e-5)
    # Rank ceil(.95 * 19) = 19 of 19 is the 1e-3; one below it are the 1e-6.
    step = GAP_EDGES[1] / GAP_EDGES[0]
    assert step == pytest.approx(10 ** (10 / 62))
    for value, bound in (
        (1e-3, report["logprob_gap/p95"]),
        (1e-3, report["logprob_gap/max"]),
        (1e-6, gap_quantile(np.asarray(metrics["gap_hist"]).sum(0), 0.94)),
        (1e-6, gap_quantile(np.asarray(metrics["gap_hist"]).sum(0), 0.0)),
    ):
        assert value <= bound <= value * step


def test_the_gap_has_a_percentile_for_each_depth_at_which_there_are_tokens():
    # 100 tokens before 128 others differ by 1e-6, those behind 200 and behind 2,047 by more.
    positions = np.array([[*range(100), 200, 2046, 2047, 2047]])
    gaps = np.array([[1e-6] * 100 + [1e-4, 1e-3, 1e-2, 1.0]])
    count = positions.size
    data = data_of(np.ones((1, count)), 1.0, np.zeros((1, count), np.float32))
    data["targets_position"] = positions
    data["rl_staleness"][0, -1] = 2
    report = summarise(grpo()(np.float32(-gaps), data).metrics)
    found = {name: value for name, value in report.items() if "_from_" in name}
    expected = {1: 1e-6, 128: 1e-4, 1024: 1e-3, 2048: 1e-2}
    assert list(found) == [f"logprob_gap/p95_from_{depth}" for depth in expected]
    for value, bound in zip(expected.values(), found.values(), strict=True):
        assert value <= bound <= value * 1.45
    assert report["logprob_gap/tokens"] == count - 1


def test_a_gap_that_is_zero_huge_or_nan_has_its_bin():
    data = data_of(np.ones((1, 3)), 0.0, np.zeros((1, 3), np.float32))
    hist = np.asarray(grpo()(np.float32([[0.0, -1e3, np.nan]]), data).metrics["gap_hist"]).sum(0)
    assert hist[0] == 1 and hist[-1] == 2 and hist.sum() == 3
    assert gap_quantile(hist, 0.3) == GAP_EDGES[0] and gap_quantile(hist, 1.0) == math.inf
    assert math.isnan(gap_quantile(np.zeros(64), 0.5))
    with pytest.raises(ValueError):
        gap_quantile(np.zeros(63), 0.5)


def test_the_gap_of_each_group_is_at_its_place_whatever_its_staleness():
    data = data_of(np.ones((2, 3)), 0.0, np.float32([[-1, -1, -1], [-2, -2, -2]]))
    data["rl_group"] = np.int32([[1, 1, 200], [17, 300, 0]])  # the last one is padding
    data["rl_mask"][1, 2] = 0
    data["rl_staleness"] = np.int32([[1, 2, 3], [1, 1, 1]])
    data["targets_segmentation"] = np.int32([[1, 1, 2], [1, 2, 0]])
    metrics = grpo()(np.float32([[-1.5, -0.75, -np.inf], [np.nan, -9, -9]]), data).metrics
    gap, tokens = (np.asarray(metrics[name]) for name in GROUP_GAPS)
    assert {int(i): float(gap[i]) for i in np.flatnonzero(gap)} == {1: 0.75, 200: 100.0}
    assert {int(i): float(tokens[i]) for i in np.flatnonzero(tokens)} == {1: 2, 17: 1, 200: 1}


def test_a_step_without_trained_tokens_is_zero_not_nan():
    data = data_of(np.zeros((2, 3)), 1.0, np.zeros((2, 3), np.float32))
    for preset in ("grpo", "dapo", "gspo", "topr"):
        slots = slots_of(preset, corrections=[{"name": "sequence_mask"}])
        result = jit(differentiated(slots))(np.zeros((2, 3), np.float32), data)
        assert float(result.loss_sum) == 0 and float(result.weight) == 0
        assert not np.asarray(result.grad_bt).any()
        report = summarise(result.metrics)
        names = ("objective/tokens", "objective/sequences", "logprob_gap/tokens")
        assert report == dict.fromkeys(names, 0)


def test_a_preset_that_is_none_is_a_plugin_error():
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "any"}, "rewards": [{"name": "any"}]}
    )
    with pytest.raises(PluginError, match="'grpo' built 3"):
        resolve(section, lambda kind, choice, key: 3)


def test_two_slots_may_not_report_one_metric():
    slots = slots_of("aipo")
    twice = dataclasses.replace(slots, corrections=(slots.importance_weight,))
    logprobs, data = example()
    with pytest.raises(PluginError, match="truncated_fraction"):
        make_loss(twice)(TokenOutputs(logprobs, logprobs), data)
