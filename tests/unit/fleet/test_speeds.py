"""Workers of different speeds: what is measured, and who gets which group."""

from __future__ import annotations

import pytest
from dispatching import reply_to, request, run
from mixed_fleets import Holding, beat, holding, measured, mixed, settle

from rlax_plugin.fleet.dispatch import Dispatcher
from rlax_plugin.fleet.fleet import Fleet
from rlax_plugin.fleet.speeds import Speeds

SEVEN = {f"w{i}": 100.0 for i in range(7)}


async def with_rates(**rates: float) -> tuple[Fleet, Dispatcher, dict[str, Holding]]:
    fleet, dispatcher, stubs = await mixed(*rates)
    await measured(fleet, **rates)
    return fleet, dispatcher, stubs


def test_speeds_are_multiples_of_the_median_and_unmeasured_workers_have_it():
    async def main():
        fleet, dispatcher, _ = await with_rates(a=100, b=110, slow=10, fast=300, new=0)
        speeds = {name: worker.speed for name, worker in fleet.workers.items()}
        median = 105  # of 10, 100, 110 and 300
        assert speeds == pytest.approx(
            {"a": 1, "b": 1, "slow": 10 / median, "fast": 300 / median, "new": 1}
        )
        assert fleet.workers["slow"].tokens_per_s == pytest.approx(10)
        assert fleet.workers["new"].tokens_per_s == 0
        await dispatcher.close()

    run(main)


def test_a_figure_follows_a_worker_that_becomes_faster():
    async def main():
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

    run(main)


def test_a_slow_worker_gets_no_group_that_would_end_after_all_others():
    async def main():
        _, dispatcher, stubs = await with_rates(**SEVEN, slow=10.0)
        for number in range(32):
            dispatcher.submit(request(number, samples=1))
        await settle()
        # Seven workers generate 32 groups in two rounds; the slow one needs ten for one group.
        assert stubs["slow"].groups == []
        assert sorted(len(stubs[name].groups) for name in SEVEN) == [4, 4, 4, 5, 5, 5, 5]
        await dispatcher.close()

    run(main)


def test_a_slow_worker_gets_its_share_of_a_long_queue():
    async def main():
        _, dispatcher, stubs = await with_rates(**SEVEN, slow=10.0)
        for number in range(300):
            dispatcher.submit(request(number, samples=1))
        await settle()
        # 300 groups in 28.4 slots are 10.6 rounds: time for its slots once, and for no fifth group.
        assert len(stubs["slow"].groups) == 4
        assert {len(stubs[name].groups) for name in SEVEN} == {8}
        await dispatcher.close()

    run(main)


def test_a_slow_worker_that_is_the_only_one_left_gets_all_that_it_has_room_for():
    async def main():
        fleet, dispatcher, stubs = await with_rates(a=100, b=100, slow=10)
        for name in ("a", "b"):
            fleet.lose(fleet.workers[name], "gone")
        for number in range(9):
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert len(stubs["slow"].groups) == 8
        await dispatcher.close()

    run(main)


@pytest.mark.parametrize(("idle_s", "groups"), [(19.0, 0), (33.0, 1)])
def test_a_slow_worker_gets_one_group_now_and_then(idle_s: float, groups: int):
    async def main():
        fleet, dispatcher, stubs = await with_rates(**SEVEN, slow=10.0)
        fleet.workers["slow"].given_s -= idle_s
        for number in range(3):  # 16 tokens at most, 1.6 s there; 20 times that is 32 s
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert len(stubs["slow"].groups) == groups
        await dispatcher.close()

    run(main)


def test_a_slow_worker_is_no_reason_to_keep_others_waiting():
    """Even if the figures say that one is faster than all others together."""

    async def main():
        _, dispatcher, stubs = await with_rates(a=100, b=100, c=100, fast=9000)
        for number in range(32):
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert {name: len(stub.groups) for name, stub in stubs.items()} == {
            "a": 8, "b": 8, "c": 8, "fast": 8
        }  # fmt: skip
        await dispatcher.close()

    run(main)


def test_an_evaluation_pins_no_slow_worker_although_it_is_idle():
    async def main():
        fleet, dispatcher, stubs = await with_rates(slow=10.0, a=100.0, b=100.0)
        for number in range(3):
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert [len(stubs[name].groups) for name in ("slow", "a", "b")] == [0, 2, 1]
        fleet.pin(5)
        assert [name for name, worker in fleet.workers.items() if worker.keep >= 0] == ["b"]
        await dispatcher.close()

    run(main)


async def newly(fleet: Fleet, name: str) -> Holding:
    """A worker that reports its decode steps, but has done none yet."""
    stub = await holding(fleet, name)
    fleet.workers[name].proven = False
    await beat(fleet, name, 0.0, 0.0)
    return stub


@pytest.mark.parametrize(("rate", "more"), [(100.0, 1), (10.0, 0)])
def test_no_batch_waits_for_a_worker_before_its_speed_is_known(rate: float, more: int):
    async def main():
        fleet, dispatcher, stubs = await with_rates(**SEVEN)
        new = await newly(fleet, "new")
        tickets = [dispatcher.submit(request(number, samples=4)) for number in range(3)]
        await settle()
        # It generates a copy of the first group, and nothing else.
        assert new.groups == [0]
        assert [stubs[f"w{i}"].groups for i in range(4)] == [[0], [1], [2], []]
        dispatcher.give_up_older(0)
        new.replies[0].put_nowait(reply_to(new.requests[0], 1, 1, 1, 1))  # not whole yet
        await measured(fleet, **SEVEN, new=rate)
        for number in range(3, 15):  # four for idle workers, and one more for each of eight
            tickets.append(dispatcher.submit(request(number, samples=4)))
        await settle()
        assert len(new.groups) == 1 + more and new.unwanted == []
        # Its answer is nobody's: the group has the samples of the worker that it was given to.
        new.replies[0].put_nowait(reply_to(new.requests[0], 1, 1, 1, 1, finish="stop"))
        await settle()
        assert not tickets[0].done() and dispatcher.again == []
        first = stubs["w0"]
        first.replies[0].put_nowait(reply_to(first.requests[0], 2, 2, 2, 2, finish="stop"))
        completed = await tickets[0]
        assert [worker.name for worker in completed.workers] == ["w0"]
        assert [len(one.tokens) for one in completed.samples] == [2] * 4
        await dispatcher.close()

    run(main)


def test_a_lost_worker_that_was_tried_out_leaves_nothing_to_issue_again():
    async def main():
        fleet, dispatcher, stubs = await with_rates(a=100, b=100)
        new = await newly(fleet, "new")
        dispatcher.submit(request(0))
        await settle()
        assert new.groups == stubs["a"].groups == [0]
        fleet.lose(fleet.workers["new"], "gone")
        await settle()
        assert dispatcher.reissued == 0 and stubs["b"].groups == []
        await dispatcher.close()

    run(main)


def test_each_worker_gets_one_group_while_no_speed_is_known():
    async def main():
        fleet, dispatcher, _ = await mixed()
        stubs = {name: await newly(fleet, name) for name in ("a", "b", "slow")}
        for number in range(6):
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert {name: stub.groups for name, stub in stubs.items()} == {
            "a": [0], "b": [1], "slow": [2]
        }  # fmt: skip
        await measured(fleet, a=100.0, b=100.0, slow=10.0)
        # The others got what waited, and what the slow one had has moved to them.
        assert sorted(stubs["a"].groups + stubs["b"].groups) == list(range(6))
        assert stubs["slow"].groups == [2]
        await dispatcher.close()

    run(main)


def test_a_worker_that_is_alone_gets_all_that_it_has_room_for_at_once():
    async def main():
        fleet, dispatcher, _ = await mixed()
        stub = await newly(fleet, "only")
        for number in range(9):
            dispatcher.submit(request(number, samples=1))
        await settle()
        assert len(stub.groups) == 8
        await dispatcher.close()

    run(main)
