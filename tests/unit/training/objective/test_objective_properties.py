"""What must hold for every preset, whatever the numbers."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from examples import examples

from rlax_plugin.build import registry_for
from rlax_plugin.testing.objectives import Evaluation, evaluate_objective, section_of
from rlax_plugin.tools.commands.reference import presets_of

PRESETS = presets_of(registry_for(section_of({})))
# Advantages that look at the batch: a group of equal rewards may train.
OF_THE_BATCH = tuple(
    name
    for name, preset in PRESETS.items()
    if preset.advantage.name in ("batch_normalised", "gae")
    and preset.advantage.options.get("baseline", "none") == "none"
)
BY_GROUP = tuple(name for name in PRESETS if name not in OF_THE_BATCH)
# The others imitate samples whatever their rewards.
COMPARES = set(PRESETS) - {"awr", "behaviour_cloning"}
# Without the terms that train whatever the rewards are.
UNPENALISED = {"kl": {"coefficient": 0}, "grad_2": {"name": "none"}, "entropy_coefficient": 0}

ROWS, GROUP = 8, 4
LONGEST, MAX_NEW_TOKENS = 4, 100  # of completions; so far below the limit none is punished
SEEDS = range(examples(2))
pytestmark = pytest.mark.property


def every(names: Iterable[str]) -> pytest.MarkDecorator:
    """Those that libraries ship are other combinations of the same slots."""
    return pytest.mark.parametrize(
        "name", [pytest.param(n, marks=pytest.mark.long) if "/" in n else n for n in names]
    )


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Lengths from 1; rewards in eighths, so that sums are exact; ratios from 1/3 to 3."""
    rng = np.random.default_rng(seed)
    behaviour_bt = rng.uniform(-3, -0.2, (ROWS, LONGEST))
    return {
        "mask_bt": np.arange(LONGEST) < rng.integers(1, LONGEST + 1, (ROWS, 1)),
        "rewards_b": rng.integers(-16, 17, ROWS) / 8,
        "behaviour_logprobs_bt": behaviour_bt,
        "logprobs_bt": behaviour_bt + rng.uniform(-1.1, 1.1, behaviour_bt.shape),
        "reference_logprobs_bt": behaviour_bt + rng.uniform(-1.1, 1.1, behaviour_bt.shape),
    }


def evaluated(
    name: str, arrays: dict[str, np.ndarray], *, rewards_only: bool = False, **changes: Any
) -> Evaluation:
    given = arrays | changes
    if rewards_only or not PRESETS[name].kl.penalises:
        del given["reference_logprobs_bt"]
    config = {"preset": name} | (UNPENALISED if rewards_only else {})
    return evaluate_objective(config, **given, group_size=GROUP, max_new_tokens=MAX_NEW_TOKENS)


def assert_teaches_nothing(name: str, arrays: dict[str, np.ndarray], rewards_b: Any) -> None:
    found = evaluated(name, arrays, rewards_only=True, rewards_b=np.array(rewards_b))
    assert not found.advantages_bt.any() and not found.grad_bt.any()


@every(sorted(COMPARES))
def test_a_batch_of_equal_rewards_teaches_nothing(name: str) -> None:
    for seed in SEEDS:
        assert_teaches_nothing(name, drawn(seed), [0.7] * ROWS)


@every(sorted(set(BY_GROUP) & COMPARES))
def test_groups_of_equal_rewards_teach_nothing(name: str) -> None:
    for seed in SEEDS:
        assert_teaches_nothing(name, drawn(seed), [0.7] * GROUP + [0.1] * GROUP)


@every(PRESETS)
def test_a_constant_added_to_rewards_changes_nothing(name: str) -> None:
    # To one group's rewards where the baseline is the group's, else to those of the whole batch.
    constants = (3.25, 3.25) if name in OF_THE_BATCH else (3.25, -7.0)
    for seed in SEEDS:
        arrays = drawn(seed)
        before = evaluated(name, arrays)
        more_b = arrays["rewards_b"] + np.repeat(constants, GROUP)
        after = evaluated(name, arrays, rewards_b=more_b)
        np.testing.assert_allclose(after.advantages_bt, before.advantages_bt, rtol=0, atol=1e-9)
        np.testing.assert_allclose(after.grad_bt, before.grad_bt, rtol=1e-5, atol=1e-6)


@every(PRESETS)
def test_at_equal_policies_it_is_the_policy_gradient(name: str) -> None:
    # d loss / d log pi = -agg A, and nothing is clipped, truncated or masked. Of the penalties, the
    # gradient is 0, except that of K1, which is beta.
    preset = PRESETS[name]
    for seed in SEEDS:
        arrays = drawn(seed)
        mask_bt, mu_bt = arrays["mask_bt"], arrays["behaviour_logprobs_bt"]
        found = evaluated(name, arrays, logprobs_bt=mu_bt, reference_logprobs_bt=mu_bt)
        length_b1 = mask_bt.sum(axis=1, keepdims=True)
        agg_bt = (
            mask_bt
            * {
                "sequence_mean": 1 / (ROWS * length_b1),
                "token_mean": 1 / mask_bt.sum(),
                "constant_length": 1 / (ROWS * MAX_NEW_TOKENS),
                "sequence_sum": 1 / ROWS,
            }[preset.aggregation.name]
        )
        expected_bt = -agg_bt * found.advantages_bt
        if preset.grad_1.options.get("per") == "sequence":  # each token's term is the whole product
            expected_bt *= length_b1
        if preset.kl.estimator == "k1" and preset.kl.placement == "loss":
            assert preset.kl.aggregation is None
            expected_bt += agg_bt * preset.kl.coefficient
        np.testing.assert_allclose(found.grad_bt, expected_bt, rtol=1e-5, atol=1e-8)
        assert found.metrics["objective/ratio"] == 1
        cut = {v for k, v in found.metrics.items() if k.endswith(("_fraction", "_high", "_low"))}
        assert cut <= {0.0}
