"""Samplers, filters and the pass-rate table, by numbers."""

from __future__ import annotations

import numpy as np
import pytest
import rlax_curation as curation
from scored_groups import scored_group

from rlax_plugin.errors import ConfigError
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable
from rlax_plugin.types import Prompt, ScoredGroup

PROMPTS = [Prompt(f"p{i}", np.array([i], np.int32), str(i), str(i)) for i in range(40)]


def group(*rewards: float | None) -> ScoredGroup:
    return scored_group(0, *((1, reward) for reward in rewards))


def test_shuffled_gives_each_prompt_once_per_epoch_and_resumes():
    sampler, rng = curation.Shuffled(), np.random.default_rng(0)
    first = sampler.choose(PROMPTS, PassRateTable(40, 8), rng, 25)
    state, bits = sampler.state(), rng.bit_generator.state
    rest = sampler.choose(PROMPTS, PassRateTable(40, 8), rng, 15)
    assert sorted(first + rest) == list(range(40))
    resumed, rng_again = curation.Shuffled(), np.random.default_rng(1)
    resumed.restore(state)
    rng_again.bit_generator.state = bits
    assert resumed.choose(PROMPTS, PassRateTable(40, 8), rng_again, 15) == rest


def test_learnability_prefers_prompts_that_pass_half_the_time():
    table = PassRateTable(40, 8)
    for i in range(40):
        # A quarter each: always, never, half, unmeasured.
        if i % 4 < 3:
            for _ in range(20):
                passed = (8, 0, 4)[i % 4]
                table.observe(i, passed, 8 - passed, 0)
    sampler = curation.Learnability(curation.LearnabilityConfig(floor=0.01))
    rng = np.random.default_rng(0)
    chosen = np.array(sampler.choose(PROMPTS, table, rng, 4000)) % 4
    share = np.bincount(chosen, minlength=4) / 4000
    # p(1-p) is .25 for half and unmeasured, about .01 for the others.
    assert share[2] + share[3] > 0.8
    assert 0 < share[0] < 0.15 and 0 < share[1] < 0.15


@pytest.mark.parametrize(("exponent", "odds"), [(0.0, 1.0), (1.0, 0.25 / 0.09), (4.0, 59.54)])
def test_the_exponent_of_learnability_decides_how_much_better_prompts_are_preferred(
    exponent: float, odds: float
):
    table = PassRateTable(40, 1e6)
    for i in range(40):  # half of them pass half of the time, the others in one of ten samples
        passed = (5000, 1000)[i % 2]
        table.observe(i, passed, 10_000 - passed, 0)
    sampler = curation.Learnability(curation.LearnabilityConfig(exponent=exponent, candidates=2))
    chosen = sampler.choose(PROMPTS, table, np.random.default_rng(0), 20_000)
    # With two candidates, one of each with probability 1/2, else the same twice.
    expected = 0.25 + 0.5 * odds / (1 + odds)
    assert np.mean(np.array(chosen) % 2 == 0) == pytest.approx(expected, abs=0.01)


def test_mixed_outcome_accepts_only_groups_with_a_difference():
    filter = curation.MixedOutcome()
    assert filter.reject(group(0.0, 1.0)) is None
    assert filter.reject(group(1.0, 1.0)) == "all rewards equal"
    assert filter.reject(group(1.0, None)) == "all rewards equal"


def test_difficulty_band_names_the_side_and_rejects_an_empty_band():
    filter = curation.DifficultyBand(curation.BandConfig(low=0.2, high=0.8), pass_threshold=0.5)
    assert filter.reject(group(1.0, 0.0, 0.0, 0.0)) is None  # .25
    assert filter.reject(group(0.0, 0.0)) == "too hard"
    assert filter.reject(group(1.0, 1.0)) == "too easy"
    with pytest.raises(ConfigError, match=r"low = 0\.9.*high = 0\.1"):
        curation.BandConfig(low=0.9, high=0.1)
