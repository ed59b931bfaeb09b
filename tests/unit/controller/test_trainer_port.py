"""The trainer's thread and the event loop: what one waits for and what the other is told."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from rlax_plugin.concurrency.supervision import result_within
from rlax_plugin.config import RlaxSection
from rlax_plugin.controller import trainer_port
from rlax_plugin.controller.trainer_port import Link
from rlax_plugin.errors import DeadlineError, TrainingError
from rlax_plugin.metrics.step import StepStats
from rlax_plugin.types import Canary, TrainBatch

TOKENS = np.array([4, 2, 3], np.int32)


class Published:
    def __init__(self):
        self.steps: list[int] = []
        self.canaries: list[Canary | None] = []

    def publish(self, step, arrays, canary=None):
        self.steps.append(step)
        self.canaries.append(canary)


async def groups(step):
    return (), StepStats(issued=step)


async def nothing():
    pass


def make(loop, next_groups=groups, snapshot=groups, begun=nothing, **deadlines):
    section = RlaxSection.model_validate(
        {"prompt_source": {"name": "x"}, "rewards": [{"name": "x"}], "deadlines": deadlines}
    )
    told: list[tuple] = []
    publisher = Published()
    port = Link(
        loop=loop,
        section=section,
        begun=begun,
        next_groups=next_groups,
        publisher=publisher,
        build_batch=lambda step, groups: TrainBatch(step, {"x": np.array([step])}, groups),
        started=lambda step: told.append(("started", step)),
        finished=lambda done: told.append(("finished", done.step, done.stats.issued)),
        snapshot=snapshot,
        progress=lambda *args: told.append(("progress", *args)),
        canary_tokens=TOKENS,
    )
    return port, told, publisher


def settle(loop):
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)


def test_a_step_is_told_in_order(loop):
    port, told, publisher = make(loop)
    port.publish(3, {})
    assert not port.training
    for step in (4, 5):
        assert port.next_batch(step)["x"].tolist() == [step]
        assert port.training
        port.publish(step, {})
        port.step_done(step, {})
    settle(loop)
    assert told == [("started", 3), ("finished", 4, 4), ("finished", 5, 5)]
    assert publisher.steps == [3, 4, 5]


def test_a_canary_of_the_given_tokens_reaches_the_publisher(loop):
    port, _, publisher = make(loop)
    assert port.canary_tokens is TOKENS
    canary = Canary(port.canary_tokens, np.array([-1, -2], np.float32), 1e-4)
    port.publish(1, {}, canary)
    port.publish(2, {})
    assert publisher.canaries == [canary, None]


def test_a_failure_of_the_flow_is_the_trainers(loop):
    async def broken(step):
        raise TrainingError("the filters are too strict")

    port, *_ = make(loop, broken)
    with pytest.raises(TrainingError, match="filters are too strict"):
        port.next_batch(1)
    with pytest.raises(TrainingError, match="without a batch"):
        port.step_done(1, {})


def test_waits_have_their_own_deadlines_and_leave_nothing_running(loop):
    ended = threading.Event()

    async def hang(step):
        if step == 1:
            return await groups(step)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    port, *_ = make(loop, hang, hang, batch_s=0.05, weights_s=0.04)
    port.next_batch(1)
    with pytest.raises(DeadlineError, match=r"batch of step 2.*0.05 s.*rlax.deadlines.batch_s"):
        port.next_batch(2)
    assert ended.wait(60)
    with pytest.raises(DeadlineError, match=r"snapshot of step 2.*rlax.deadlines.weights_s"):
        port.before_checkpoint(2)


def test_what_precedes_the_first_batch_may_take_as_long_as_it_needs(loop, monkeypatch):
    order, deadlines_s = [], []

    def within(work, loop, deadline_s, late):
        deadlines_s.append(deadline_s)
        return result_within(work, loop, 60, late)

    monkeypatch.setattr(trainer_port, "result_within", within)

    async def evaluation():
        await asyncio.sleep(0)
        order.append("evaluated")

    async def generated(step):
        order.append(step)
        return await groups(step)

    port, *_ = make(loop, generated, begun=evaluation, batch_s=0.05, startup_s=0.05)
    for step in (1, 2):
        port.next_batch(step)
    assert order == ["evaluated", 1, 2]
    assert deadlines_s == [None, 0.1, 0.05]  # start-up counts once

    async def broken():
        raise TrainingError("no worker can load it")

    port, *_ = make(loop, generated, begun=broken)
    with pytest.raises(TrainingError, match="no worker can load it"):
        port.next_batch(1)


def test_a_requested_stop_is_seen(loop):
    port, *_ = make(loop)
    assert not port.stop_requested
    port.request_stop()
    assert port.stop_requested
