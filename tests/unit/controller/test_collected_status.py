"""The status of a run counts the steps of this process, without the one that compiles."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from rlax_plugin.config import RlaxSection
from rlax_plugin.controller.status import StatusCollector
from rlax_plugin.metrics.run_stats import RunStats


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
    under_way = SimpleNamespace(slowest=lambda most: [])
    dispatcher = SimpleNamespace(under_way=under_way, backlog=SimpleNamespace(samples=0))
    rewards = SimpleNamespace(busy=1, replaced=0, slowest=lambda most: [])
    made = SimpleNamespace(dispatcher=dispatcher, rewards=rewards, scaler=None)
    state = SimpleNamespace(next_step=8, totals=SimpleNamespace(reissued=0), open={})
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "p"}, "rewards": [{"name": "r"}], "reward_processes": 2}
    )
    return SimpleNamespace(
        stats=stats, fleet=fleet, generation=made, section=section, run_state=state, ready=""
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
    found = asyncio.run(collector.status())
    assert (found.step, found.step_s, found.left_s, found.tokens_per_s) == (7, 2.0, 6.0, 5.0)
    assert found.shares == {"wait": 0.25, "train": 0.75, "publish": 0.0, "other": 0.0}
    assert found.rewards_used == 0.5
