"""Samplers ``learnability``, ``band`` and ``greso``: shares by closed form."""

import json
from typing import Any

import numpy as np
import pytest
import rlax_curation as curation

from rlax_plugin.api import Prompt, Sampler
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.data.curation.pass_rate_table import PassRateTable
from rlax_plugin.testing import make_rates


def prompts(count: int) -> list[Prompt]:
    return [Prompt(f"p{i}", np.array([i], np.int32), str(i), str(i)) for i in range(count)]


PROMPTS = prompts(40)


def band(**options: Any) -> curation.BandSampler:
    return curation.BandSampler(curation.BandSamplerConfig(**options))


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


# --- band ------------------------------------------------------------------------------------


def test_the_band_keeps_what_may_be_inside() -> None:
    # P(rate > .8) after n of n: 1 - .8^(n+1), which is .866 for 8 and .977 for 16.
    outcomes = ((8, 0), (16, 0), (0, 16))
    rates = make_rates(40, {i: outcomes[i % 4] for i in range(40) if i % 4 < 3})
    chosen = band().choose(PROMPTS, rates, np.random.default_rng(0), 8000)
    eight, sixteen, none, unknown = shares(chosen, 4)
    # One of both outer kinds is chosen only if all eight candidates are: 1 in 256.
    assert sixteen + none == pytest.approx(1 / 256, abs=0.003)
    assert eight == pytest.approx(255 / 512, abs=0.02) and abs(eight - unknown) < 0.04
    # With an interval of 70 % the bound is .85: eight of eight are too many.
    chosen = band(confidence=0.7).choose(PROMPTS, rates, np.random.default_rng(0), 8000)
    assert shares(chosen, 4)[3] == pytest.approx(1 - 0.75**8, abs=0.015)


def test_a_prompt_comes_back_into_the_band_when_its_samples_are_old() -> None:
    rates = PassRateTable(2, half_life=10)
    rates.observe(0, 16, 0, version=0)
    rates.observe(1, 4, 4, version=0)
    sampler, rng = band(candidates=40), np.random.default_rng(0)
    assert set(sampler.choose(PROMPTS[:2], rates, rng, 100)) == {1}
    rates.observe(1, 4, 4, version=10)  # the 16 count as 8
    assert shares(sampler.choose(PROMPTS[:2], rates, rng, 1000), 2)[0] == pytest.approx(
        0.5, abs=0.06
    )


def test_outside_the_band_the_nearest_is_taken() -> None:
    # Posterior means 17/18, 31/32 and 1/102; the band is [.2, .8].
    rates = make_rates(3, {0: (16, 0), 1: (30, 0), 2: (0, 100)})
    sampler, rng = band(candidates=64), np.random.default_rng(0)
    assert set(sampler.choose(PROMPTS[:3], rates, rng, 200)) == {0}


def test_a_band_upside_down_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"low = 0\.9.*high = 0\.1"):
        curation.BandSamplerConfig(low=0.9, high=0.1)


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


def answer(rates: PassRateTable, chosen: list[int]) -> None:
    """Half of the prompts always pass, three tenths never, a fifth does so half the time."""
    for index in chosen:
        passed = (8, 8, 8, 8, 8, 0, 0, 0, 4, 4)[index % 10]
        rates.observe(index, passed, 8 - passed, 0)


def test_a_chance_below_the_minimum_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hard = 0\.01.*minimum = 0\.05"):
        curation.GresoConfig(hard=0.01)


@pytest.mark.parametrize("steps", [0, 9])
def test_resumed_greso_chooses_the_same_again(steps: int) -> None:
    """Although pass rates change; the contract of samplers has them stay."""

    def go(sampler: Sampler, rates: PassRateTable, rng: np.random.Generator, count: int):
        chosen = []
        for _ in range(count):
            chosen.append(sampler.choose(PROMPTS, rates, rng, 8))
            answer(rates, chosen[-1])
        return chosen

    sampler, rates, rng = greso(window=16), PassRateTable(40, 32), np.random.default_rng(3)
    go(sampler, rates, rng, steps)
    state, columns, bits = json.dumps(sampler.state()), rates.columns(), rng.bit_generator.state
    expected = go(sampler, rates, rng, 12)
    again, rates_again = greso(window=16), PassRateTable(40, 32)
    rng_again = np.random.default_rng()
    again.restore(json.loads(state))
    rates_again.restore(columns)
    rng_again.bit_generator.state = bits
    assert go(again, rates_again, rng_again, 12) == expected
    assert again.state() == sampler.state() and rates_again.outcomes == rates.outcomes
