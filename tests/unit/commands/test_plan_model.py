"""The model of a step: sums by hand, and what it is fitted to it predicts elsewhere."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rlax_plugin.commands.plan.arrangement import Arrangement, calibrations, candidates, given
from rlax_plugin.commands.plan.model import StepModel, crowding, fit
from rlax_plugin.commands.plan.observed import Observed
from rlax_plugin.commands.plan.ranking import plan
from rlax_plugin.commands.plan.show import sentences
from rlax_plugin.commands.plan.usage import Usage
from rlax_plugin.config import RlaxSection
from rlax_plugin.config.loading import ResolvedConfig
from rlax_plugin.errors import ConfigError

# 64 samples of 8 tokens on average, 16 at most.
TRUTH = StepModel(
    cores=2,
    samples=64.0,
    tokens=512.0,
    longest=16.0,
    generating=(0.1, 0.002, 0.01, 0.0005),
    training=(0.25, 0.3),
    worker_cores=1.5,
    trainer_cores=(1.6, 0.4),
    rest_s=0.03,
    overlap=1.0,
    trainer_bytes=1e9,
    batch_bytes=4e8,
    worker_bytes=5e8,
    slot_bytes=1e6,
    other_bytes=1e8,
)
ALONE = Arrangement(1, 64, 1)


def seen(one: Arrangement, truth: StepModel = TRUTH, **changes: Any) -> Observed:
    """The measurement of a run in this arrangement, if the model is right."""
    there = truth.predict(one)
    crowd = crowding(one.workers, truth.worker_cores, truth.cores)
    _, _, each, slot = truth.generating
    training, receiving = truth.trainer_cores
    found = Observed(
        one,
        step_s=there.step_s,
        train_s=there.train_s,
        generate_s=there.generate_s,
        decode_step_s=crowd * (each + slot * one.slots),
        samples=truth.samples,
        tokens=truth.tokens,
        longest=truth.longest,
        usage=Usage(
            trainer_cpu_s=training * there.train_s + receiving * there.generate_s,
            workers_cpu_s=one.workers * truth.worker_cores * there.generate_s / crowd,
            trainer_bytes=truth.trainer_bytes + truth.batch_bytes / one.parts,
            worker_bytes=truth.worker_bytes + one.slots * truth.slot_bytes,
            other_bytes=truth.other_bytes,
        ),
    )
    return replace(found, **changes)


def test_a_step_is_the_sum_of_generation_and_training_or_the_longer_of_both():
    # All 64 samples at once: 16 decode steps of 10 ms and .5 ms a slot.
    generate_s = 0.1 + 64 * 0.002 + 16 * 0.01 + 16 * 64 * 0.0005
    alone = TRUTH.predict(ALONE)
    assert alone.generate_s == pytest.approx(generate_s)
    assert alone.step_s == pytest.approx(generate_s + 0.25 + 0.03)
    assert alone.limit == "generation + training" and alone.bytes == 1e9 + 4e8 + 5e8 + 64e6 + 1e8
    # CPU, on 2 cores: 1.6 of .25 s of training, 1.5 of generation, .4 for what is generated.
    beside = TRUTH.predict(replace(ALONE, max_staleness=2))
    assert beside.step_s == pytest.approx((1.6 * 0.25 + (1.5 + 0.4) * generate_s) / 2)
    assert beside.limit == "CPU"
    # With j = k = 2 the weights of the next step's samples are always there: nothing waits.
    assert TRUTH.predict(replace(ALONE, reload_every=2, max_staleness=2)).step_s == beside.step_s


def test_samples_that_find_no_slot_wait_and_workers_share_the_cores():
    # 64 samples of 8 tokens through 16 slots: 32 steps, and 8 more for the longest of the last.
    few = TRUTH.predict(replace(ALONE, slots=16))
    assert few.generate_s == pytest.approx(0.1 + 64 * 0.002 + 40 * (0.01 + 16 * 0.0005))
    # Two workers want 3 of 2 cores, and each has half of the samples.
    two = TRUTH.predict(Arrangement(2, 32, 1))
    assert two.generate_s == pytest.approx(0.1 + 1.5 * (32 * 0.002 + 16 * (0.01 + 32 * 0.0005)))
    apart = replace(TRUTH, cores=0).predict(Arrangement(2, 32, 1))
    assert apart.generate_s == pytest.approx(0.1 + 32 * 0.002 + 16 * (0.01 + 32 * 0.0005))
    assert TRUTH.predict(replace(ALONE, parts=4)).train_s == pytest.approx(0.25 * 4**0.3)


@pytest.mark.parametrize("cores", [0, 2])
def test_what_was_fitted_to_four_runs_holds_for_all_others(cores: int):
    truth = replace(TRUTH, cores=cores, overlap=1.2)
    short = calibrations(ALONE, 64, 2, [(1, 1), (1, 2)])
    assert short == [
        Arrangement(1, 64, 1),
        Arrangement(1, 32, 2),
        Arrangement(2, 64, 1),
        Arrangement(2, 64, 1, 1, 2),
    ]
    model = fit([seen(one, truth) for one in short], cores=cores)
    others = list(candidates(ALONE, 64, 3, [(1, 1), (1, 2), (2, 2)], 64))
    assert len(others) > 50
    for one in others:
        there, expected = model.predict(one), truth.predict(one)
        assert there.step_s == pytest.approx(expected.step_s, rel=0.02), one
        assert there.bytes == pytest.approx(expected.bytes, rel=1e-6)


def test_no_work_has_a_negative_price_however_noisy_the_runs_are():
    short = calibrations(ALONE, 64, 2, [(1, 1)])
    noisy = [
        seen(one, generate_s=seconds, train_s=1 / seconds, decode_step_s=math.nan)
        for one, seconds in zip(short, (0.5, 2.0, 0.1), strict=True)
    ]
    model = fit(noisy, cores=2)
    assert min(*model.generating, model.training[0], model.rest_s) >= 0
    assert all(model.predict(one).step_s > 0 for one in candidates(ALONE, 64, 2, [(1, 2)], 64))


def test_a_plan_ranks_what_fits_and_says_how_good_it_is():
    short = calibrations(ALONE, 0, 2, [(1, 1), (1, 2)])
    assert {one.parts for one in short} == {1}  # MaxText decides on the rows
    measured = [seen(one) for one in short]
    measured[0] = replace(measured[0], step_s=1.25 * measured[0].step_s)
    model = fit([seen(one) for one in short], cores=2)
    among = list(candidates(ALONE, 0, 2, [(1, 1), (1, 2)], 64))
    found = plan(model, measured, ALONE, among, 2.2e9, 0)
    assert found.now.bytes < 2.2e9 and found.least_bytes == min(
        model.predict(a).bytes for a in among
    )
    assert found.too_large == sum(model.predict(one).bytes > 2.2e9 for one in among) > 0
    times = [one.step_s for one in found.ranked]
    assert times == sorted(times) and all(one.bytes <= 2.2e9 for one in found.ranked)
    said = sentences(found)
    assert "the largest error of their steps is 20%" in said[0]
    fastest = found.best((1, 2))
    assert fastest is not None
    expected = " ".join(fastest.arrangement.overrides(0))
    assert said[-1].endswith(expected) and "per_device_batch_size" not in expected


@pytest.mark.parametrize(("longest", "workers"), [(60.0, 2), (200.0, 2), (1024.0, 3)])
def test_samples_shorter_than_their_limit_are_planned_by_their_own_length(
    longest: float, workers: int
) -> None:
    truth = replace(TRUTH, tokens=64 * 30.0, longest=longest)
    short = calibrations(ALONE, 64, 2, [(1, 1)])
    model = fit([seen(one, truth) for one in short], cores=2)
    for one in candidates(ALONE, 64, workers, [(1, 1)], 64):
        assert model.predict(one).step_s == pytest.approx(truth.predict(one).step_s, rel=0.02)


def test_what_the_rows_do_not_allow_is_neither_measured_nor_compared() -> None:
    odd = calibrations(ALONE, 63, 1, [(1, 1)])
    assert odd == [ALONE, Arrangement(1, 32, 1)]
    assert {one.parts for one in candidates(ALONE, 63, 1, [(1, 1)], 64)} == {1}
    # 6 micro-batches of 3 rows: no 12 of them, but 3.
    six = Arrangement(1, 1, 6)
    assert calibrations(six, 18, 1, [(1, 1)]) == [six, Arrangement(1, 2, 3)]
    assert {one.parts for one in candidates(six, 18, 1, [(1, 1)], 64)} == {3, 6}
    assert {one.slots for one in candidates(six, 18, 1, [(1, 1)], 64)} == {1, 2}
    late = calibrations(ALONE, 64, 8, [(2, 3), (1, 3)])
    assert [one.staleness for one in late] == [(1, 1), (1, 1), (1, 1), (1, 3)]
    assert max(one.workers for one in late) == 2  # more could be too much for the memory


def test_a_plan_for_which_nothing_fits_says_what_is_needed() -> None:
    model = fit([seen(one) for one in calibrations(ALONE, 0, 1, [(1, 1)])], cores=2)
    among = list(candidates(ALONE, 0, 1, [(1, 1)], 64))
    found = plan(model, [seen(ALONE)], ALONE, among, 1e6, 0, ["one reason", "another"])
    said = sentences(found)
    assert any(one.startswith("nothing fits: the smallest arrangement needs 1.8") for one in said)
    assert said[-2:] == ["one reason", "another"] and found.best((1, 1)) is None


def config(**maxtext: Any) -> ResolvedConfig:
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}], "rollouts": {}}
    )
    return ResolvedConfig(section, maxtext)


@pytest.mark.parametrize("value", [None, "a", [1], True, 0, -1, 2.5, math.nan, math.inf])
@pytest.mark.parametrize("key", ["per_device_batch_size", "gradient_accumulation_steps"])
def test_rows_and_parts_must_be_whole_numbers(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}( = .*)?: must be a whole number, at least 1"):
        given(config(**{key: value}))


def test_rows_that_a_device_does_not_have_alone_stay_as_they_are() -> None:
    assert given(config())[1] == 0
    assert given(config(per_device_batch_size=0.5))[1] == 0
    found, rows = given(config(per_device_batch_size=16.0, gradient_accumulation_steps=4))
    assert (found.parts, rows) == (4, 64)
    assert found.overrides(rows)[-2:] == [
        "gradient_accumulation_steps=4",
        "per_device_batch_size=16",
    ]


def test_separate_cores_are_not_planned_for() -> None:
    found = config()
    launcher = {"name": "local", "trainer_threads": 1}
    section = RlaxSection.model_validate(found.section.model_dump() | {"launcher": launcher})
    with pytest.raises(ConfigError, match=r"^rlax.launcher.trainer_threads = 1: is not planned"):
        given(replace(found, section=section))
