from __future__ import annotations

import functools
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax_objectives
from hypothesis import given, settings
from hypothesis import strategies as st

from rlax_plugin import BuildContext, Choice
from rlax_plugin.config import Objective, RlaxSection
from rlax_plugin.errors import ConfigError, PluginError, TrainingError
from rlax_plugin.objective import (
    GAP_EDGES,
    gap_quantile,
    group_advantages,
    make_loss,
    resolve,
    summarise,
)

KINDS = (
    "objective",
    "aggregation",
    "importance_weight",
    "advantage",
    "gradient_term",
    "correction",
)
modes = pytest.mark.parametrize("mode", [lambda f: f, jax.jit], ids=["eager", "jit"])


def slots_of(preset="grpo", max_staleness=1, max_new_tokens=4, **overrides):
    section = RlaxSection.model_validate(
        {
            "prompt_source": {"name": "any"},
            "rewards": [{"name": "any"}],
            "rollouts": {"max_new_tokens": max_new_tokens},
            "staleness": {"max_staleness": max_staleness},
            "objective": {"preset": preset, **overrides},
        }
    )
    context = BuildContext(run_dir=Path("unused"), seed=0, section=section)
    registered = {k: getattr(rlax_objectives, f"rlax_register_{k}")() for k in KINDS}

    def part(kind, choice, key):
        extension = registered[kind][choice.name]
        return extension.build(extension.config_class.model_validate(choice.options), context)

    return resolve(section.objective, part)


def data_of(mask, advantages, behaviour, staleness=1):
    mask = np.array(mask, np.int32)
    return {
        "rl_mask": mask,
        "rl_advantages": np.array(advantages, np.float32) * np.ones(mask.shape, np.float32),
        "rl_behaviour_logprobs": np.array(behaviour, np.float32),
        "rl_staleness": np.full(mask.shape, staleness, np.int32),
    }


def example():
    """Two samples of lengths 2 and 1; ratios 1.5, 0.5 (A = 1) and 0.5 (A = -2)."""
    behaviour = np.log([[0.2, 0.4, 1.0], [0.6, 1.0, 1.0]])
    logprobs = np.log([[0.3, 0.2, 1.0], [0.3, 1.0, 1.0]])
    data = data_of([[1, 1, 0], [1, 0, 0]], [[1.0], [-2.0]], behaviour)
    return jnp.asarray(logprobs, jnp.float32), data


def value_grad(slots, mode, logprobs, data):
    loss = make_loss(slots)

    def total(logprobs, data):
        loss_sum, weight, metrics = loss(logprobs, data)
        return loss_sum, (weight, metrics)

    (loss_sum, (weight, metrics)), grad = mode(jax.value_and_grad(total, has_aux=True))(
        logprobs, data
    )
    return float(loss_sum), np.asarray(grad), float(weight), metrics


@modes
def test_grpo_by_hand(mode):
    # Clipped: 1.5 > 1.2 with A > 0, and 0.5 < 0.8 with A < 0. What is left is the second token of
    # the first sample: agg 1/2 (its length), A = 1, M r = 0.5.
    # J = 1/2 * 1 * 0.5 = 0.25; dJ/dlogp = 1/2 * 1 * r = 0.25. Weight: 2 sequences.
    loss, grad, weight, metrics = value_grad(slots_of("grpo"), mode, *example())
    assert loss == pytest.approx(-0.25, abs=1e-6)
    np.testing.assert_allclose(grad, [[0, -0.25, 0], [0, 0, 0]], atol=1e-6)
    assert weight == 2
    report = summarise(metrics)
    assert report["objective/clip_fraction_high"] == pytest.approx(1 / 3)
    assert report["objective/clip_fraction_low"] == pytest.approx(1 / 3)
    assert report["objective/ratio"] == pytest.approx((1.5 + 0.5 + 0.5) / 3)
    assert report["objective/advantage"] == pytest.approx((1 + 1 - 2) / 3, abs=1e-6)
    assert report["objective/advantage_abs"] == pytest.approx(4 / 3)
    assert report["objective/entropy"] == pytest.approx(-math.log(0.3 * 0.2 * 0.3) / 3)
    # r - 1 - log r, for 1.5 and twice 0.5.
    kl = (0.5 - math.log(1.5) + 2 * (-0.5 + math.log(2))) / 3
    assert report["objective/kl"] == pytest.approx(kl, rel=1e-5)
    assert (report["objective/tokens"], report["objective/rows"]) == (3, 2)


@modes
def test_dapo_by_hand(mode):
    # Ratios 1.25 (between GRPO's 1.2 and DAPO's 1.28), 0.5 (A = 1) and 0.9 (A = -2): none clipped.
    # J = 1 * 1.25 + 1 * 0.5 - 2 * 0.9 = -0.05 over 3 tokens.
    _, data = example()
    ratios = np.array([[1.25, 0.5, 1], [0.9, 1, 1]])
    logprobs = jnp.asarray(data["rl_behaviour_logprobs"] + np.log(ratios), jnp.float32)
    loss, grad, weight, metrics = value_grad(slots_of("dapo"), mode, logprobs, data)
    assert loss == pytest.approx(0.05, abs=1e-6)
    np.testing.assert_allclose(grad, [[-1.25, -0.5, 0], [1.8, 0, 0]], atol=1e-6)
    assert weight == 3
    assert summarise(metrics)["objective/clip_fraction_high"] == 0
    # GRPO clips the first token: J = 1/2 * 0.5 - 2 * 0.9.
    loss, _, _, metrics = value_grad(slots_of("grpo"), mode, logprobs, data)
    assert loss == pytest.approx(1.55, abs=1e-6)
    assert summarise(metrics)["objective/clip_fraction_high"] == pytest.approx(1 / 3)


@modes
def test_stale_samples_get_truncated_importance_sampling_by_hand(mode):
    # Ratios 3 and 0.5, A = 2: weights min(3, 2) = 2 and 0.5. The gradient of log pi stays where the
    # ratio is cut: dJ/dlogp = 1/2 * (2, 0.5) * 2 = (2, 0.5). J = 2 log 0.6 + 0.5 log 0.1.
    data = data_of([[1, 1]], 2.0, np.log([[0.2, 0.2]]), staleness=2)
    logprobs = jnp.log(jnp.array([[0.6, 0.1]]))
    loss, grad, _, metrics = value_grad(slots_of("grpo", max_staleness=2), mode, logprobs, data)
    assert loss == pytest.approx(-(2 * math.log(0.6) + 0.5 * math.log(0.1)), abs=1e-5)
    np.testing.assert_allclose(grad, [[-2, -0.5]], atol=1e-6)
    report = summarise(metrics)
    assert report["objective/truncated_fraction"] == 0.5
    # Stale tokens say nothing about numerics.
    assert report["logprob_gap/tokens"] == 0 and "logprob_gap/mean" not in report


@modes
def test_constant_length_divides_by_the_limit_and_counts_sequences(mode):
    # L_max = 4, ratios 1: J = (1 + 1 - 2) / 4 in value; gradients A / 4; weight 2 sequences, the
    # padding row is none.
    slots = slots_of("grpo", aggregation={"name": "constant_length"})
    data = data_of([[1, 1], [1, 0], [0, 0]], [[1], [-2], [5]], np.zeros((3, 2)))
    loss, grad, weight, _ = value_grad(slots, mode, jnp.zeros((3, 2)), data)
    assert loss == pytest.approx(0, abs=1e-6) and weight == 2
    np.testing.assert_allclose(grad, [[-0.25, -0.25], [0.5, 0], [0, 0]], atol=1e-6)


def random_case(seed, rows=8, length=6):
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(0, length + 1, (rows, 1))
    behaviour = -rng.exponential(1.0, (rows, length))
    logprobs = behaviour + rng.normal(0, 0.4, (rows, length))
    data = data_of(mask, rng.normal(0, 1, (rows, 1)), behaviour)
    data["rl_staleness"] = rng.integers(1, 3, (rows, length)).astype(np.int32)
    return jnp.asarray(logprobs, jnp.float32), data


@functools.cache
def jitted(preset, max_staleness=1):
    """loss_sum, weight, metrics and the gradient, compiled once."""
    loss = make_loss(slots_of(preset, max_staleness))

    def total(logprobs, data):
        loss_sum, weight, metrics = loss(logprobs, data)
        return loss_sum, (weight, metrics)

    return jax.jit(jax.value_and_grad(total, has_aux=True))


seeds = st.integers(0, 2**32 - 1)
variants = pytest.mark.parametrize("variant", [("grpo", 1), ("dapo", 1), ("grpo", 2)], ids=str)


def assert_padding_changes_no_bit(run, seed):
    logprobs, data = random_case(seed)
    rng = np.random.default_rng(seed + 1)
    padding = data["rl_mask"] == 0
    garbage = {
        "rl_advantages": rng.choice([-3e38, 3e38, np.inf, np.nan], padding.shape),
        "rl_behaviour_logprobs": rng.choice([-3e38, 3e38, -200.0, np.nan], padding.shape),
        "rl_staleness": rng.integers(-5, 5, padding.shape),
    }
    dirty = data | {
        name: np.where(padding, x, data[name]).astype(data[name].dtype)
        for name, x in garbage.items()
    }
    dirty_logprobs = jnp.where(
        padding, rng.choice([-3e38, 3e38, 100.0, np.nan], padding.shape), logprobs
    )
    clean, again = run(logprobs, data), run(dirty_logprobs, dirty)
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(again), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert not np.asarray(again[1])[padding].any()


@variants
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_padding_changes_no_bit(variant, seed):
    assert_padding_changes_no_bit(jitted(*variant), seed)


def test_padding_changes_no_bit_in_eager_mode():
    # Under jit XLA turns x * mask into a selection, which would hide 0 * NaN.
    with jax.disable_jit():
        assert_padding_changes_no_bit(jitted("dapo"), 0)


@variants
@settings(max_examples=20, deadline=None)
@given(seed=seeds)
def test_uneven_micro_batches_give_the_gradient_of_one(variant, seed):
    logprobs, data = random_case(seed)
    if not data["rl_mask"].any():
        return

    (loss, (weight, metrics)), grad = jitted(*variant)(logprobs, data)
    # Four micro-batches of 1, 1, 2 and 4 rows, each padded to 4 rows as a trainer does.
    parts = []
    for start, stop in ((0, 1), (1, 2), (2, 4), (4, 8)):
        cut = {name: np.zeros((4, 6), x.dtype) for name, x in data.items()}
        for name in cut:
            cut[name][: stop - start] = data[name][start:stop]
        rows = jnp.zeros((4, 6)).at[: stop - start].set(logprobs[start:stop])
        parts.append((jitted(*variant)(rows, cut), stop - start))
    total_weight = sum(float(p[0][1][0]) for p, _ in parts)
    assert total_weight == float(weight)
    assert sum(float(p[0][0]) for p, _ in parts) == pytest.approx(float(loss), abs=1e-5)
    accumulated = np.concatenate([np.asarray(p[1])[:n] for p, n in parts]) / total_weight
    np.testing.assert_allclose(accumulated, np.asarray(grad) / float(weight), atol=1e-6)
    for name, value in metrics.items():
        summed = sum(np.asarray(p[0][1][1][name]) for p, _ in parts)
        np.testing.assert_allclose(summed, value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("preset", "low", "high"), [("grpo", 0.2, 0.2), ("dapo", 0.2, 0.28)])
def test_clip_mask_has_the_gradient_of_ppos_minimum(preset, low, high):
    logprobs, data = random_case(3, rows=64)

    def ppo(logprobs):
        ratio = jnp.exp(logprobs - data["rl_behaviour_logprobs"])
        advantages = data["rl_advantages"]
        term = jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - low, 1 + high) * advantages)
        lengths = data["rl_mask"].sum(1, keepdims=True)
        scale = 1 / np.maximum(lengths, 1) if preset == "grpo" else 1
        return -(term * data["rl_mask"] * scale).sum()

    (_, (_, metrics)), grad = jitted(preset)(logprobs, data)
    np.testing.assert_allclose(grad, jax.grad(ppo)(logprobs), atol=1e-6)
    report = summarise(metrics)
    assert report["objective/clip_fraction_high"] > 0.05  # the test reached both clips
    assert report["objective/clip_fraction_low"] > 0.05


@pytest.mark.parametrize("max_staleness", [1, 2])
def test_ratio_one_is_the_policy_gradient(max_staleness):
    # r = 1 everywhere: the gradient of J is A / len, whichever form is in use.
    _, data = random_case(5)
    logprobs = jnp.asarray(data["rl_behaviour_logprobs"])
    _, grad = jitted("grpo", max_staleness)(logprobs, data)
    lengths = np.maximum(data["rl_mask"].sum(1, keepdims=True), 1)
    expected = -data["rl_advantages"] * data["rl_mask"] / lengths
    np.testing.assert_allclose(grad, expected, atol=1e-6)


def test_clipped_overflow_leaves_the_gradient_finite():
    data = data_of([[1, 1]], 1.0, [[-200.0, -1.0]])
    loss, grad, _, _ = value_grad(slots_of("grpo"), jax.jit, jnp.array([[-1.0, -1.0]]), data)
    assert loss == -0.5  # the first ratio, e^199, is infinite in float32 and clipped
    np.testing.assert_allclose(grad, [[0, -0.5]])


def advantage_of(**options):
    return slots_of("grpo", advantage={"name": "group_normalised", **options}).advantage


def test_group_normalised_by_hand():
    lengths = np.ones(4, int)
    # Rewards 1 0 0 0: mean 1/4; squared deviations 9/16 + 3/16 = 3/4; ddof 1: std 1/2.
    rewards = np.array([1.0, 0, 0, 0])
    np.testing.assert_allclose(advantage_of()(rewards, lengths), [1.5, -0.5, -0.5, -0.5], rtol=1e-5)
    # ddof 0: std sqrt(3)/4, so 0.75 / 0.4330 = sqrt(3).
    np.testing.assert_allclose(
        advantage_of(ddof=0, epsilon=0)(rewards, lengths),
        [math.sqrt(3), *[-1 / math.sqrt(3)] * 3],
        rtol=1e-12,
    )
    # epsilon 0.5 doubles the divisor.
    np.testing.assert_allclose(advantage_of(epsilon=0.5)(rewards, lengths)[0], 0.75)
    np.testing.assert_allclose(
        advantage_of(scale_by_std=False)(rewards, lengths), [0.75, -0.25, -0.25, -0.25]
    )


def test_leave_one_out_by_hand():
    advantage = slots_of("grpo", advantage={"name": "leave_one_out"}).advantage
    # 3 - mean(1, 2) = 1.5; 1 - 2.5 = -1.5; 2 - 2 = 0.
    np.testing.assert_allclose(advantage(np.array([3.0, 1, 2]), np.ones(3, int)), [1.5, -1.5, 0])


def test_overlong_shaping_by_hand():
    # L_max 10, L_c 4, penalty 0.5: lengths 6, 8, 10, 12 lose 0, 0.25, 0.5 and 0.5.
    advantage = advantage_of(
        overlong_buffer_tokens=4, overlong_penalty=0.5, max_tokens=10, scale_by_std=False
    )
    got = advantage(np.ones(4), np.array([6, 8, 10, 12]))
    np.testing.assert_allclose(got, np.array([1, 0.75, 0.5, 0.5]) - 0.6875)
    # DAPO: 10 // 5 = 2 tokens of buffer; length 9 is half way in, 10 at the end.
    dapo = slots_of("dapo", max_new_tokens=10).advantage
    shaped = np.array([1, 0.5, 0])
    np.testing.assert_allclose(
        dapo(np.ones(3), np.array([8, 9, 10])), (shaped - 0.5) / 0.5, rtol=1e-5
    )
    with pytest.raises(ConfigError, match="overlong_buffer_tokens = 11: must not exceed"):
        advantage_of(overlong_buffer_tokens=11, max_tokens=10)


@settings(max_examples=50, deadline=None)
@given(reward=st.floats(-1e6, 1e6), size=st.integers(1, 16), epsilon=st.sampled_from([0, 1e-9]))
def test_equal_rewards_give_exactly_zero(reward, size, epsilon):
    rewards, lengths = np.full(size, reward), np.arange(size)
    assert not advantage_of(epsilon=epsilon)(rewards, lengths).any()


def test_eight_rewards_of_seven_tenths_give_exactly_zero():
    for name in ("group_normalised", "leave_one_out"):
        slots = slots_of("grpo", advantage={"name": name})
        assert slots.advantage(np.full(8, 0.7), np.ones(8, int)).tolist() == [0.0] * 8


@settings(max_examples=50, deadline=None)
@given(
    rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=12),
    shift=st.floats(-100, 100),
    name=st.sampled_from(["group_normalised", "leave_one_out"]),
)
def test_a_constant_added_to_all_rewards_changes_nothing(rewards, shift, name):
    advantage = slots_of("grpo", advantage={"name": name}).advantage
    lengths = np.ones(len(rewards), int)
    base = advantage(np.array(rewards, float), lengths)
    np.testing.assert_allclose(advantage(np.array(rewards) + shift, lengths), base, atol=1e-9)
    assert base.sum() == pytest.approx(0, abs=1e-9)


def test_errored_samples_get_zero_and_influence_nobody():
    advantage, lengths = advantage_of(), np.ones(5, int)
    with_errors = advantage(np.array([np.nan, 1, 0, np.nan, 0]), lengths)
    np.testing.assert_array_equal(with_errors[[0, 3]], 0)
    np.testing.assert_array_equal(
        with_errors[[1, 2, 4]], advantage(np.array([1.0, 0, 0]), lengths[:3])
    )
    assert advantage(np.full(5, np.nan), lengths).tolist() == [0.0] * 5
    with pytest.raises(TrainingError, match="got"):
        group_advantages(lambda r, n: r[:1], np.ones(3), np.ones(3, int))
    with pytest.raises(TrainingError, match="inf"):
        group_advantages(lambda r, n: r * np.inf, np.ones(1), np.ones(1, int))


def test_the_gap_is_counted_on_fresh_tokens_only_and_quantiles_bound_it():
    # 20 tokens: 18 gaps of 1e-6, one of 1e-3, and one stale token with a gap of 1.
    gaps = np.array([[1e-6] * 18 + [1e-3, 1.0]])
    data = data_of(np.ones((1, 20)), 1.0, np.zeros((1, 20)))
    data["rl_staleness"][0, -1] = 2
    _, (_, metrics) = jitted("grpo")(jnp.asarray(-gaps, jnp.float32), data)[0]
    report = summarise(metrics)
    assert report["logprob_gap/tokens"] == 19
    assert report["logprob_gap/mean"] == pytest.approx((18e-6 + 1e-3) / 19, rel=1e-5)
    # Rank ceil(.95 * 19) = 19 of 19 is the 1e-3; one below it are the 1e-6.
    step = GAP_EDGES[1] / GAP_EDGES[0]
    assert step == pytest.approx(10 ** (10 / 62))
    for value, bound in (
        (1e-3, report["logprob_gap/p95"]),
        (1e-3, report["logprob_gap/max"]),
        (1e-6, gap_quantile(np.asarray(metrics["gap_hist"]), 0.94)),
        (1e-6, gap_quantile(np.asarray(metrics["gap_hist"]), 0.0)),
    ):
        assert value <= bound <= value * step


def test_a_gap_that_is_zero_huge_or_nan_has_its_bin():
    data = data_of(np.ones((1, 3)), 0.0, np.zeros((1, 3)))
    _, (_, metrics) = jitted("grpo")(jnp.array([[0.0, -1e3, jnp.nan]]), data)[0]
    hist = np.asarray(metrics["gap_hist"])
    assert hist[0] == 1 and hist[-1] == 2 and hist.sum() == 3
    assert gap_quantile(hist, 0.3) == GAP_EDGES[0] and gap_quantile(hist, 1.0) == math.inf
    assert math.isnan(gap_quantile(np.zeros(64), 0.5))
    with pytest.raises(ValueError):
        gap_quantile(np.zeros(63), 0.5)


def test_a_step_without_trained_tokens_is_zero_not_nan():
    data = data_of(np.zeros((2, 3)), 1.0, np.zeros((2, 3)))
    for variant in (("grpo", 1), ("dapo", 1), ("grpo", 2)):
        (loss, (weight, metrics)), grad = jitted(*variant)(jnp.zeros((2, 3)), data)
        assert float(loss) == 0 and float(weight) == 0 and not np.asarray(grad).any()
        report = summarise(metrics)
        assert report == {"objective/tokens": 0, "objective/rows": 0, "logprob_gap/tokens": 0}


def test_overrides_replace_single_slots_of_the_preset():
    slots = slots_of("dapo", grad_1={"name": "clipped_ratio", "high": 0.5}, corrections=[])
    assert (slots.grad_1.low, slots.grad_1.high) == (0.2, 0.5)
    assert slots.aggregation is rlax_objectives.token_mean
    assert slots_of("dapo").grad_1.high == 0.28
    assert slots_of("dapo", max_staleness=3).corrections[0].cap == 2.0


def test_the_ratio_to_the_sampler_enters_once():
    with pytest.raises(ConfigError) as error:
        slots_of("grpo", corrections=[{"name": "truncated_importance_sampling"}])
    assert "rlax.objective.grad_1 (clipped_ratio)" in str(error.value)
    assert "rlax.objective.corrections.0 (truncated_importance_sampling)" in str(error.value)


def test_a_preset_that_is_none_is_a_plugin_error():
    with pytest.raises(PluginError, match="'grpo' built 3"):
        resolve(Objective(), lambda kind, choice, key: 3)


def test_two_slots_may_not_report_one_metric():
    slots = slots_of(
        "grpo",
        grad_1={"name": "log_prob"},
        importance_weight={"name": "truncated"},
    )
    twice = type(slots)(
        slots.aggregation,
        slots.advantage,
        slots.importance_weight,
        slots.grad_1,
        slots.grad_2,
        (slots.importance_weight,),
    )
    logprobs, data = example()
    with pytest.raises(PluginError, match="truncated_fraction"):
        make_loss(twice)(logprobs, data)


def test_shapes_are_checked():
    logprobs, data = example()
    with pytest.raises(AssertionError):
        make_loss(slots_of())(logprobs[:, :2], data)
    with pytest.raises(AssertionError):
        make_loss(slots_of())(logprobs[0], data)


def test_resolving_an_objective_does_not_import_jax():
    code = """
import sys
from pathlib import Path
import rlax_objectives
import rlax_plugin.batches
from rlax_plugin import BuildContext
from rlax_plugin.config import RlaxSection
from rlax_plugin.objective import resolve

section = RlaxSection(prompt_source={"name": "any"}, rewards=[{"name": "any"}])
context = BuildContext(run_dir=Path("unused"), seed=0, section=section)

def part(kind, choice, key):
    extension = getattr(rlax_objectives, f"rlax_register_{kind}")()[choice.name]
    return extension.build(extension.config_class(**choice.options), context)

assert resolve(section.objective, part).grad_1.high == 0.2
assert "jax" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_choice_keeps_options_beside_its_name():
    assert Choice(name="clipped_ratio", low=0.1).options == {"low": 0.1}
