"""Workers of different speeds: what is measured, and who gets which group."""

import pytest
from dispatching import make, request
from mixed_fleets import Holding, beat, holding, measured, mixed
from waiting import turns

from rlax_plugin.rollout.fleet.dispatch import Dispatcher
from rlax_plugin.rollout.fleet.fleet import Fleet
from rlax_plugin.rollout.fleet.speeds import Speeds

SEVEN = {f"w{i}": 100.0 for i in range(7)}


async def with_rates(**rates: float) -> tuple[Fleet, Dispatcher, dict[str, Holding]]:
    fleet, dispatcher, stubs = await mixed(*rates)
    await measured(fleet, **rates)
    return fleet, dispatcher, stubs


async def test_speeds_are_multiples_of_the_median_and_unmeasured_workers_have_it():
    fleet, dispatcher, _ = await with_rates(a=100, b=110, slow=10, fast=300, new=0)
    speeds = {name: worker.speed for name, worker in fleet.workers.items()}
    median = 105  # of 10, 100, 110 and 300
    assert speeds == pytest.approx(
        {"a": 1, "b": 1, "slow": 10 / median, "fast": 300 / median, "new": 1}
    )
    assert fleet.workers["slow"].tokens_per_s == pytest.approx(10)
    assert fleet.workers["new"].tokens_per_s == 0
    await dispatcher.close()


async def test_a_figure_follows_a_worker_that_becomes_faster():
    fleet, dispatcher, _ = await with_rates(a=100, b=100, slow=10)
    worker, speeds = fleet.workers["slow"], Speeds(fleet.workers)
    steps = seconds = 10.0
    for now_s, rate in [(0.0, 10.0), (1.0, 10.0), (400.0, 100.0)]:
        steps, seconds = steps + rate, seconds + 1
        worker.figures = {"steps_total": steps, "decode_s_total": seconds}
        speeds.heard(worker, now_s)
    # After a long idle time, the old reports count next to nothing.
    assert worker.tokens_per_s == pytest.approx(100)
    worker.figures = {"steps_total": 3.0, "decode_s_total": 1.0}  # another engine's
    speeds.heard(worker, 401.0)
    worker.figures = {"steps_total": 53.0, "decode_s_total": 2.0}
    speeds.heard(worker, 500.0)
    assert worker.tokens_per_s == pytest.approx(50)
    await dispatcher.close()


@pytest.mark.parametrize("trial_s", [0.04, 0.08])
async def test_a_worker_whose_engine_hung_for_a_while_is_not_slow_for_ever(trial_s):
    """It gets no groups any more, so that only the trials of its idle engine can show it."""

    fleet, dispatcher, _ = await with_rates(a=100, b=100, c=100)
    worker, speeds = fleet.workers["c"], Speeds(fleet.workers)
    steps, seconds, seen = 10, 10.0, []
    for now_s, more_s in [(0.0, 1.0), (60.0, 59.0), (95.0, trial_s)]:
        steps, seconds = steps + 8, seconds + more_s
        worker.figures = {"steps_total": float(steps), "decode_s_total": seconds}
        for _ in fleet.workers:
            speeds.heard(worker, now_s)
        seen.append(worker.speed)
    assert seen == [1.0, 0.01, 1.0]  # the first report is what the others are compared with
    await dispatcher.close()


async def test_a_run_that_gives_no_work_by_speed_counts_all_workers_as_equal():
    """A deterministic run tries no engine, so a worker that was slow once would stay so."""

    fleet, dispatcher, _ = make(refresh=lambda request: request, by_speed=False)
    fleet.newest.number = 5
    stubs = {name: await holding(fleet, name) for name in ("a", "slow")}
    await measured(fleet, a=100.0, slow=10.0)
    assert {worker.speed for worker in fleet.workers.values()} == {1.0}
    for number in range(8):
        dispatcher.submit(request(number, samples=1))
    await turns()
    assert len(stubs["slow"].groups) == 4
    await dispatcher.close()


async def test_what_few_or_short_steps_say_counts_only_where_it_differs_much():
    fleet, dispatcher, stubs = await with_rates(**SEVEN)
    for name, decode_s in (("busy", 0.24), ("tiny", 0.04), ("slow", 0.8)):
        stubs[name] = await holding(fleet, name)
        await beat(fleet, name, 8, 2.0)
        await beat(fleet, name, 16, 2.0 + decode_s)
    speeds = {name: fleet.workers[name].speed for name in ("busy", "tiny", "slow")}
    assert speeds == pytest.approx({"busy": 1, "tiny": 1, "slow": 0.1})  # 33, -, 10 of 100
    await dispatcher.close()


async def test_a_slow_worker_gets_no_group_that_would_end_after_all_others():
    _, dispatcher, stubs = await with_rates(**SEVEN, slow=10.0)
    for number in range(32):
        dispatcher.submit(request(number, samples=1))
    await turns()
    # Seven workers generate 32 groups in two rounds; the slow one needs ten for one group.
    assert stubs["slow"].groups == []
    assert sorted(len(stubs[name].groups) for name in SEVEN) == [4, 4, 4, 5, 5, 5, 5]
    await dispatcher.close()


async def test_a_slow_worker_gets_its_share_of_a_long_queue():
    _, dispatcher, stubs = await with_rates(**SEVEN, slow=10.0)
    for number in range(300):
        dispatcher.submit(request(number, samples=1))
    await turns()
    # 300 groups in 28.4 slots are 10.6 rounds: time for its slots once, and for no fifth group.
    assert len(stubs["slow"].groups) == 4
    assert {len(stubs[name].groups) for name in SEVEN} == {8}
    await dispatcher.close()


async def test_a_slow_worker_that_is_the_only_one_left_gets_all_that_it_has_room_for():
    fleet, dispatcher, stubs = await with_rates(a=100, b=100, slow=10)
    for name in ("a", "b"):
        fleet.lose(fleet.workers[name], "gone")
    for number in range(9):
        dispatcher.submit(request(number, samples=1))
    await turns()
    assert len(stubs["slow"].groups) == 8
    await dispatcher.close()


async def test_a_slow_worker_is_no_reason_to_keep_others_waiting():
    """Even if the figures say that one is faster than all others together."""

    _, dispatcher, stubs = await with_rates(a=100, b=100, c=100, fast=9000)
    for number in range(32):
        dispatcher.submit(request(number, samples=1))
    await turns()
    assert {name: len(stub.groups) for name, stub in stubs.items()} == {
        "a": 8, "b": 8, "c": 8, "fast": 8
    }  # fmt: skip
    await dispatcher.close()


async def test_an_evaluation_pins_no_slow_worker_although_it_is_idle():
    fleet, dispatcher, stubs = await with_rates(slow=10.0, a=100.0, b=100.0)
    for number in range(3):
        dispatcher.submit(request(number, samples=1))
    await turns()
    assert [len(stubs[name].groups) for name in ("slow", "a", "b")] == [0, 2, 1]
    fleet.pin(5)
    assert [name for name, worker in fleet.workers.items() if worker.keep >= 0] == ["b"]
    await dispatcher.close()
