"""What must hold for every preset, whatever the numbers, and whatever padding holds."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from examples import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from objective_harness import jit

from rlax_plugin.build import registry_for
from rlax_plugin.config import Batches, Rollouts
from rlax_plugin.testing.objectives import section_of, slots_of
from rlax_plugin.tools.commands.reference import presets_of
from rlax_plugin.training.objective import advantages
from rlax_plugin.training.objective.diagnostics import summarise
from rlax_plugin.training.objective.loss import TokenOutputs, kl_token_rewards, make_loss

PRESETS = presets_of(registry_for(section_of({})))
ADVANTAGES = {name: preset.advantage for name, preset in PRESETS.items()}
# In the mean over tokens even rewards less their group's mean are not centred.
WHITENED = tuple(n for n, a in ADVANTAGES.items() if a.name in ("batch_normalised", "gae"))
OF_GROUPS = tuple(n for n in PRESETS if n not in WHITENED)
# Advantages that look at the batch: a group of equal rewards may train.
OF_THE_BATCH = tuple(n for n in WHITENED if ADVANTAGES[n].options.get("baseline", "none") == "none")
BY_GROUP = tuple(n for n in PRESETS if n not in OF_THE_BATCH)

CORRECTIONS = ("truncated_importance_sampling", "icepop", "sequence_mask", "veto")
CONFIGS: dict[str, dict[str, Any]] = {name: {"preset": name} for name in PRESETS} | {
    "all_corrections": {
        "preset": "dapo",
        "old_policy": "reprefill",
        "corrections": [{"name": name} for name in CORRECTIONS],
    },
    "kl_and_entropy": {
        "preset": "grpo",
        "kl": {"coefficient": 0.1, "estimator": "k3"},
        "entropy_coefficient": 0.05,
    },
    "kl_in_the_reward": {"preset": "ppo", "kl": {"coefficient": 0.1, "placement": "reward"}},
    "with_a_critic": {"preset": "ppo", "advantage": {"name": "gae", "lam": 0.9}},
}
# Presets with terms that train whatever the rewards are -> their configs without these terms.
REWARDS_ONLY = {
    name: f"{name}, rewards only"
    for name, preset in PRESETS.items()
    if preset.kl.penalises or preset.grad_2.name != "none" or preset.entropy_coefficient
}
UNPENALISED = {"kl": {"coefficient": 0}, "grad_2": {"name": "none"}, "entropy_coefficient": 0}
OBJECTIVES = CONFIGS | {
    config: {"preset": name, **UNPENALISED} for name, config in REWARDS_ONLY.items()
}

ROWS, LENGTH, GROUP = 8, 16, 4
LONGEST, MAX_NEW_TOKENS = 4, 100  # of completions; so far below the limit none is punished
every = functools.partial(pytest.mark.parametrize, "name")
pytestmark = pytest.mark.property

# Examples come out of a seed: there is nothing to shrink.
some = settings(max_examples=examples(6), phases=[Phase.generate])


class Samples(NamedTuple):
    """Eight samples, two groups; per token [8, LONGEST]."""

    lengths_n: np.ndarray
    rewards_n: np.ndarray
    tokens: dict[str, np.ndarray]


@st.composite
def samples(draw: st.DrawFn) -> Samples:
    """Lengths from 1; rewards in eighths, so that sums are exact; ratios from 1/3 to 3."""
    lengths = draw(st.lists(st.integers(1, LONGEST), min_size=ROWS, max_size=ROWS))
    rewards = draw(st.lists(st.integers(-16, 16), min_size=ROWS, max_size=ROWS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    behaviour = rng.uniform(-3, -0.2, (ROWS, LONGEST))

    def near() -> np.ndarray:
        return behaviour + rng.uniform(-1.1, 1.1, behaviour.shape)

    tokens = {
        "logprobs": near(),
        "entropy": rng.uniform(0, 3, behaviour.shape),
        "values": rng.uniform(-1, 1, behaviour.shape),
        "rl_behaviour_logprobs": behaviour,
        "rl_old_logprobs": near(),
        "rl_old_known": rng.integers(0, 2, behaviour.shape),
        "rl_reference_logprobs": near(),
        "rl_staleness": rng.integers(1, 3, behaviour.shape),
    }
    return Samples(np.array(lengths), np.array(rewards) / 8, tokens)


class Batch(NamedTuple):
    """Samples in rows of LENGTH, each behind one token of prompt; ``places`` of completions."""

    arrays: dict[str, np.ndarray]
    places: list[tuple[int, slice]]

    def of_samples(self, x_bt: Any) -> np.ndarray:
        """What an array holds on completions, sample after sample."""
        return np.concatenate([np.asarray(x_bt)[place] for place in self.places])


def laid_out(s: Samples, rows: list[list[int]]) -> Batch:
    """``rows`` says which samples stand in which row, in order of the samples."""
    host = ("rl_group", "rl_episode", "rl_place", "rl_rewards")
    names = ("rl_mask", *host, "targets_segmentation", *s.tokens)
    arrays = {name: np.zeros((ROWS, LENGTH)) for name in names}
    places = []
    for row, members in enumerate(rows):
        at = 0
        for segment, sample in enumerate(members, start=1):
            end = at + 1 + s.lengths_n[sample]
            place = (row, slice(at + 1, end))
            arrays["targets_segmentation"][row, at:end] = segment
            arrays["rl_mask"][place] = 1
            arrays["rl_group"][place] = 1 + sample // GROUP
            arrays["rl_episode"][place] = 1 + sample
            arrays["rl_place"][place] = 1 + np.arange(s.lengths_n[sample])
            arrays["rl_rewards"][place] = s.rewards_n[sample]
            for name, values_nt in s.tokens.items():
                arrays[name][place] = values_nt[sample, : s.lengths_n[sample]]
            places.append(place)
            at = end
    integer = ("rl_mask", "rl_group", "rl_episode", "rl_place", "targets_segmentation")
    integer = (*integer, "rl_old_known", "rl_staleness")
    arrays |= {name: arrays[name].astype(np.int32) for name in integer}
    return Batch(arrays, places)


ONE_PER_ROW = [[i] for i in range(ROWS)]


@functools.cache
def parts(name: str):
    """The slots, and the compiled (scores, data) -> ((sum, (weight, metrics)), gradient)."""
    slots = slots_of(
        section_of(
            {**OBJECTIVES[name], "epochs": 2, "allow_uncorrected": True},
            rollouts=Rollouts(
                group_size=GROUP, groups_per_step=ROWS // GROUP, max_new_tokens=MAX_NEW_TOKENS
            ),
            batches=Batches(rows=ROWS),
        )
    )
    loss = make_loss(slots)

    def total(logprobs_bt, entropy_bt, data):
        loss_sum, weight, metrics = loss(TokenOutputs(logprobs_bt, entropy_bt), data)
        return loss_sum, (weight, metrics)

    return slots, jit(jax.value_and_grad(total, has_aux=True))


def with_advantages(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    slots, _ = parts(name)
    token_rewards_bt = None
    if slots.needs_reference and not slots.kl_in_loss:
        policies = (arrays["rl_behaviour_logprobs"], arrays["rl_reference_logprobs"])
        token_rewards_bt = kl_token_rewards(slots.algorithm.kl, *policies, arrays["rl_mask"])
    values_bt = arrays["values"] if name == "with_a_critic" else None
    found_bt = advantages.of_batch(slots.advantages, arrays, token_rewards_bt, values_bt)
    return arrays | {"rl_advantages": found_bt}


def computed(name: str, arrays: dict[str, np.ndarray]):
    """loss sum, weight, gradient [rows, length] of the sum, metric sums."""
    real = np.float64 if jax.config.jax_enable_x64 else np.float32
    data = {
        key: x_bt if x_bt.dtype == np.int32 else x_bt.astype(real)
        for key, x_bt in arrays.items()
        if key not in ("rl_group", "rl_episode", "rl_place", "rl_rewards", "values")
    }
    scores = (data.pop("logprobs"), data.pop("entropy"))
    (loss_sum, (weight, metrics)), grad_bt = parts(name)[1](*scores, data)
    return jax.device_get((loss_sum, weight, grad_bt, metrics))


def gradient(name: str, s: Samples) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """Advantages and d loss / d log pi on completions; metrics."""
    batch = laid_out(s, ONE_PER_ROW)
    arrays = with_advantages(name, batch.arrays)
    _, weight, grad_bt, metrics = computed(name, arrays)
    where = batch.of_samples
    return where(arrays["rl_advantages"]), where(grad_bt) / weight, summarise(metrics)


def of_rewards(name: str, s: Samples) -> tuple[np.ndarray, np.ndarray, dict[str, float]]:
    """``gradient`` without the terms that train whatever the rewards are."""
    return gradient(REWARDS_ONLY.get(name, name), s)


@every(PRESETS)
@some
@given(samples())
def test_a_batch_of_equal_rewards_teaches_nothing(name, s):
    for reward in (0.7, s.rewards_n[0]):
        advantages_k, grad_k, _ = of_rewards(name, s._replace(rewards_n=np.full(ROWS, reward)))
        assert not advantages_k.any() and not grad_k.any()


@every(BY_GROUP)
@some
@given(samples())
def test_groups_of_equal_rewards_teach_nothing(name, s):
    rewards_n = np.repeat([0.7, 0.1], GROUP)
    advantages_k, grad_k, _ = of_rewards(name, s._replace(rewards_n=rewards_n))
    assert not advantages_k.any() and not grad_k.any()


@every(OF_GROUPS)
@some
@given(samples())
def test_a_group_of_equal_rewards_teaches_nothing_beside_another(name, s):
    rewards_n = np.array([0.7] * GROUP + [1, 0, 0, 1])
    advantages_k, grad_k, _ = of_rewards(name, s._replace(rewards_n=rewards_n))
    equal_k = np.repeat(np.arange(ROWS) < GROUP, s.lengths_n)
    assert not advantages_k[equal_k].any() and not grad_k[equal_k].any()
    assert advantages_k[~equal_k].any() and np.isfinite(grad_k).all()


@every(PRESETS)
@some
@given(samples(), st.integers(-40, 40), st.integers(-40, 40))
def test_a_constant_added_to_rewards_changes_nothing(name, s, first, second):
    # To one group's rewards where the baseline is the group's, else to those of the whole batch.
    constant_n = np.repeat([first, first if name in OF_THE_BATCH else second], GROUP) / 4
    before = gradient(name, s)
    after = gradient(name, s._replace(rewards_n=s.rewards_n + constant_n))
    np.testing.assert_allclose(after[0], before[0], rtol=0, atol=1e-9)
    np.testing.assert_allclose(after[1], before[1], rtol=1e-5, atol=1e-6)


@every(PRESETS)
@some
@given(samples())
def test_at_equal_policies_it_is_the_policy_gradient(name, s):
    # d loss / d log pi = -agg A, and nothing is clipped, truncated or masked. Of the penalties, the
    # gradient is 0, except that of K1, which is beta.
    mu = s.tokens["rl_behaviour_logprobs"]
    policies = ("logprobs", "rl_old_logprobs", "rl_reference_logprobs")
    equal = s._replace(tokens=s.tokens | dict.fromkeys(policies, mu))
    advantages_k, grad_k, metrics = gradient(name, equal)
    preset, length_k = PRESETS[name], np.repeat(s.lengths_n, s.lengths_n)
    agg_k = {
        "sequence_mean": 1 / (ROWS * length_k),
        "token_mean": 1 / length_k.size,
        "constant_length": 1 / (ROWS * MAX_NEW_TOKENS),
        "sequence_sum": 1 / ROWS,
    }[preset.aggregation.name]
    expected_k = -agg_k * advantages_k
    if preset.grad_1.options.get("per") == "sequence":  # each token's term is the whole product
        expected_k *= length_k
    if preset.kl.estimator == "k1" and preset.kl.placement == "loss":
        assert preset.kl.aggregation is None
        expected_k += agg_k * preset.kl.coefficient
    np.testing.assert_allclose(grad_k, expected_k, rtol=1e-5, atol=1e-8)
    assert metrics["objective/ratio"] == 1
    assert {v for k, v in metrics.items() if k.endswith(("_fraction", "_high", "_low"))} <= {0.0}


@every(CONFIGS)
@some
@given(samples(), st.integers(0, 2**32 - 1))
def test_what_padding_holds_changes_no_bit(name, s, seed):
    rng = np.random.default_rng(seed)
    clean = laid_out(s, ONE_PER_ROW[:-1]).arrays  # the last row is all padding
    padding_bt = clean["rl_mask"] == 0

    def soiled(key: str, x_bt: np.ndarray) -> np.ndarray:
        if key in ("rl_mask", "rl_group", "rl_episode"):  # these say what is padding
            return x_bt
        garbage_bt = rng.choice([-1e30, -7.0, -1.0, 1.0, 3.0, 90.0], x_bt.shape)
        if x_bt.dtype == np.int32:
            garbage_bt = rng.integers(-3, 9, x_bt.shape)
        return np.where(padding_bt, garbage_bt, x_bt).astype(x_bt.dtype)

    arrays = with_advantages(name, clean)
    dirty = with_advantages(name, {key: soiled(key, x_bt) for key, x_bt in clean.items()})
    np.testing.assert_array_equal(dirty["rl_advantages"], arrays["rl_advantages"])
    dirty["rl_advantages"] = soiled("rl_advantages", dirty["rl_advantages"])
    expected, found = computed(name, arrays), computed(name, dirty)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert not found[2][padding_bt].any()
