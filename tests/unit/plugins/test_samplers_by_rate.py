"""Samplers ``learnability`` and ``greso``: shares by closed form."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import rlax_curation as curation

from rlax_plugin.api import Prompt, Sampler
from rlax_plugin.errors import ConfigError
from rlax_plugin.pass_rates.pass_rate_table import PassRateTable


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{i}", np.array([i], np.int32), str(i), str(i)) for i in range(count)]


PROMPTS = prompts(40)


def greso(**options: Any) -> curation.Greso:
    return curation.Greso(curation.GresoConfig(**options))


def shares(chosen: list[int], kinds: int) -> list[float]:
    return (np.bincount(np.array(chosen) % kinds, minlength=kinds) / len(chosen)).tolist()


# --- learnability ---------------------------------------------------------------------------


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


# --- greso -----------------------------------------------------------------------------------


def test_prompts_are_skipped_by_the_length_of_their_streak() -> None:
    many = prompts(400)
    rates = PassRateTable(400, 32)
    for i in range(400):
        for passed in ((4,), (8, 8), (0,), ())[i % 4]:  # mixed; twice all; once none; unasked
            rates.observe(i, passed, 8 - passed, 0)
    sampler = greso(easy=0.5, hard=0.2, step=0)
    chosen = sampler.choose(many, rates, np.random.default_rng(0), 8000)
    weights = np.array([1, 0.5**2, 0.2, 1])
    assert shares(chosen, 4) == pytest.approx((weights / weights.sum()).tolist(), abs=0.015)
    times = np.bincount(chosen, minlength=400)[0::4]  # epochs: of the mixed none is left out
    assert times.max() - times.min() <= 1


def test_of_prompts_that_are_all_skipped_each_64th_is_taken() -> None:
    rates = PassRateTable(640, 32)
    for _ in range(20):
        for i in range(640):
            rates.observe(i, 0, 4, 0)
    order = np.random.default_rng(5).permutation(640)[::-1]
    chosen = greso().choose(prompts(640), rates, np.random.default_rng(5), 10)
    assert chosen == order[63::64].tolist()


def test_chances_follow_the_shares_of_whole_windows() -> None:
    sampler, rates, rng = (
        greso(window=4, minimum=0.48),
        PassRateTable(40, 32),
        np.random.default_rng(),
    )
    chances = []
    # All, none, mixed: what comes between two choices, in groups.
    for passed, failed, mixed in ((1, 0, 2), (0, 0, 1), (0, 2, 2), (4, 1, 0), (4, 0, 0)):
        for count, passes in ((passed, 2), (failed, 0), (mixed, 1)):
            for _ in range(count):
                rates.observe(0, passes, 2 - passes, 0)
        sampler.choose(PROMPTS, rates, rng, 1)
        state = sampler.state()
        chances.append((round(state["easy"], 9), round(state["hard"], 9)))
    # 3 groups are no window; 1 of 4 easy is more than 1/12, and 0 of 4 hard less than 1/6; ...
    assert chances == [(0.5, 0.5), (0.49, 0.51), (0.5, 0.5), (0.49, 0.49), (0.48, 0.5)]
    assert rates.outcomes == (9, 3, 5)


def kind_of(index: int) -> int:
    """Half of the prompts always pass, three tenths never, a fifth does so half the time."""
    return 0 if index % 10 < 5 else 1 if index % 10 < 8 else 2


def answer(rates: PassRateTable, chosen: list[int]) -> None:
    for index in chosen:
        passed = (8, 0, 4)[kind_of(index)]
        rates.observe(index, passed, 8 - passed, 0)


def test_a_chance_below_the_minimum_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hard = 0\.01.*minimum = 0\.05"):
        curation.GresoConfig(hard=0.01)


@pytest.mark.parametrize(
    "make",
    [lambda: greso(window=16), lambda: curation.Learnability(curation.LearnabilityConfig())],
)
@pytest.mark.parametrize("steps", [0, 2, 9])
def test_a_resumed_sampler_chooses_the_same_again(make: Any, steps: int) -> None:
    def go(sampler: Sampler, rates: PassRateTable, rng: np.random.Generator, count: int):
        chosen = []
        for _ in range(count):
            chosen.append(sampler.choose(PROMPTS, rates, rng, 8))
            answer(rates, chosen[-1])
        return chosen

    sampler, rates, rng = make(), PassRateTable(40, 32), np.random.default_rng(3)
    go(sampler, rates, rng, steps)
    state, columns, bits = json.dumps(sampler.state()), rates.columns(), rng.bit_generator.state
    expected = go(sampler, rates, rng, 12)
    again, rates_again, rng_again = make(), PassRateTable(40, 32), np.random.default_rng()
    again.restore(json.loads(state))
    rates_again.restore(columns)
    rng_again.bit_generator.state = bits
    assert go(again, rates_again, rng_again, 12) == expected
    assert again.state() == sampler.state() and rates_again.outcomes == rates.outcomes
