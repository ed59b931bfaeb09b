"""The status of a run counts the steps of this process, without the one that compiles."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sections import section_with

from rlax_plugin.base.liveness.run_status import SILENT
from rlax_plugin.rollout.fleet.fleet import Losses
from rlax_plugin.run.controller import status as module
from rlax_plugin.run.controller.status import StatusCollector
from rlax_plugin.run.metrics.run_stats import RunStats


def step(step_s: float, wait_s: float) -> dict[str, float]:
    return {
        "time/step_s": step_s,
        "time/wait_s": wait_s,
        "time/train_s": step_s - wait_s,
        "time/publish_on_loop_s": 0.0,
        "rollout/tokens": 10.0,
    }


def controller(stats: RunStats) -> Any:
    """A fake: of a controller, what a status asks for."""
    fleet = SimpleNamespace(listeners=[], workers={}, newest=SimpleNamespace(number=5))
    dispatcher = SimpleNamespace(slowest=lambda most: [], backlog=SimpleNamespace(samples=0))
    rewards = SimpleNamespace(busy=1, replaced=0, failing="x" * 999, slowest=lambda most: [])
    launcher = SimpleNamespace(failing={})
    made = SimpleNamespace(dispatcher=dispatcher, pools=(rewards,), scaler=None, launcher=launcher)
    state = SimpleNamespace(next_step=8, totals=SimpleNamespace(reissued=0), open={})
    section = section_with(reward_processes=2, deadlines={"heartbeat_s": 1.0})
    return SimpleNamespace(
        stats=stats,
        fleet=fleet,
        generation=made,
        section=section,
        run_state=state,
        ready="",
        damaged=[],
    )


def test_steps_of_an_earlier_process_and_the_first_one_do_not_count() -> None:
    stats = RunStats()
    collector = StatusCollector(controller(stats), last_step=10)
    for _ in range(3):  # a resumed run learns of them once the collector is there
        stats.add(step(9.0, 9.0))
    stats.earlier = 3
    assert asyncio.run(collector.status()).step_s is None
    stats.add(step(50.0, 0.0))  # it compiled, and its wait was not measured
    found = asyncio.run(collector.status())
    assert found.step_s is None and found.shares == {}
    for _ in range(2):
        stats.add(step(2.0, 0.5))
    stats.add(step(21.0, 20.0))  # something was stuck: it says nothing about what to change
    stats.add(step(2.0, 0.5))
    found = asyncio.run(collector.status())
    assert (found.step, found.step_s, found.left_s, found.tokens_per_s) == (7, 2.0, 6.0, 40 / 27)
    assert found.shares == {"wait": 0.25, "train": 0.75, "publish": 0.0, "other": 0.0}
    assert found.rewards_used == 0.5 and 250 < len(found.reward_error) <= 300


class Clock:
    """A clock that the test sets."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic


def member(name: str, **figures: float) -> Any:
    """A fake: of a worker, what a status asks for."""
    return SimpleNamespace(
        name=name, identity=(name, "p"), figures=figures, version=3, draining=False, keep=-1,
        assigned=4, slots=8, serves=lambda exactly: True, suspicion={}, rests=False, speed=0.5,
    )  # fmt: skip


def test_workers_that_are_silent_lost_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = Clock(), controller(RunStats())
    monkeypatch.setattr(module, "time", clock)
    collector = StatusCollector(run, last_step=10)

    def after(seconds: float) -> Any:
        """Returns the status, one each second, as long as this process runs."""
        for _ in range(int(seconds)):
            clock.now_s += 1.0
            found = asyncio.run(collector.status())
        return found

    near, far = member("near"), member("far")
    run.fleet.workers = {"near": near, "far": far}
    for one in (near, far):
        collector.worker_heard(one)
    assert {one.state for one in after(5).workers} == {"generates"}
    assert [(one.silent_s, one.state) for one in after(1).workers] == [(6.0, SILENT)] * 2
    clock.now_s += 30.0  # this process is stopped: nobody could be heard
    assert [one.silent_s for one in after(1).workers] == [7.0 - 1.0, 7.0 - 1.0]
    del run.fleet.workers["far"]
    collector.worker_lost(far, "no heartbeat for 6 s")
    collector.worker_lost(member("gone"), "left")
    (lost,) = after(2).lost
    assert (lost.name, lost.reason, lost.silent_s) == ("far", "no heartbeat for 6 s", 8.0)
    run.fleet.workers["far"] = far
    collector.worker_heard(far)
    assert after(1).lost == []
    del run.fleet.workers["far"]
    collector.worker_lost(far, "no heartbeat for 6 s")
    found = after(590)
    assert len(found.lost) == 1
    (losses,) = found.losses  # and none of a worker that has left
    assert (losses.name, losses.reason) == ("far", "no heartbeat for 6 s")
    assert (losses.count, clock.now_s - losses.at) == (2, 590.0)
    found = after(8)  # the first one is ten minutes old
    assert [one.count for one in found.losses] == [1] and len(found.lost) == 1
    found = after(3)
    assert found.lost == [] and found.losses == ()
    collector.worker_lost(far, "no heartbeat for 6 s")
    collector.worker_lost(far, "left")  # it had come back
    found = after(1)
    assert found.lost == [] and [one.count for one in found.losses] == [1]


def test_loadings_that_take_long_or_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = Clock(), controller(RunStats())
    monkeypatch.setattr(module, "time", clock)
    collector = StatusCollector(run, last_step=10)
    for figures in ({"load_failures_total": 5.0}, {"load_failures_total": 7.0, "loading_s": 4.5}):
        run.fleet.workers = {"a": member("a", **figures)}
        collector.worker_heard(run.fleet.workers["a"])
    (found,) = asyncio.run(collector.status()).workers
    assert (found.loading_s, found.load_failures) == (4.5, 2)  # since it was heard first
    assert found.speed == 0.5


def test_what_is_wrong_with_a_worker_is_shown() -> None:
    run, worker = controller(RunStats()), member("a")
    run.fleet.workers, run.fleet.losses = {"a": worker}, Losses()
    for _ in range(2):
        run.fleet.losses.lost("a", 0.0)
    worker.rests = True
    worker.suspicion |= {"x": "its numbers are odd", "y": "it is late"}
    run.generation.launcher = SimpleNamespace(failing={"a": "worker a ended\x1b[2J"})
    found = asyncio.run(StatusCollector(run, 10).status())
    assert found.workers[0].state == "rests: lost 2 times"
    assert found.workers[0].suspicion == "its numbers are odd; it is late"
    (sentence,) = found.failing
    assert sentence.startswith("worker a ended") and "\x1b" not in sentence
