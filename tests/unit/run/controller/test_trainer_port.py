"""The trainer's thread and the event loop: what one waits for and what the other is told."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from sections import section_with

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.loop_thread import result_within
from rlax_plugin.base.errors import DeadlineError, TrainingError
from rlax_plugin.base.types import Canary
from rlax_plugin.config import Algorithm
from rlax_plugin.run.controller import trainer_port
from rlax_plugin.run.controller.trainer_port import ControllerPort
from rlax_plugin.run.metrics.step import StepStats
from rlax_plugin.testing import make_batch, make_group, make_prompt


class Published:
    def __init__(self):
        self.steps: list[int] = []
        self.canaries: list[Canary | None] = []
        self.last_s, self.last_bytes, self.last_written = 0.25, 1234, None

    def publish(self, weights):
        self.steps.append(weights.step)
        self.canaries.append(weights.canary)
        self.parts = weights.parts

    def will_write(self, *steps):
        pass

    def holds(self, version):
        return version == self.steps[-1]

    def again(self):
        self.steps.append(100 + self.steps[-1])

    def wait(self):
        self.steps.append(-1)

    def forget(self):
        self.steps.append(0)


class FakeController:
    """What the port asks of a controller, with groups at once unless a test says otherwise."""

    algorithm = Algorithm.model_construct(mask_truncated=False)

    def __init__(self, **deadlines):
        self.section = section_with(
            rollouts={"group_size": 2, "groups_per_step": 1}, deadlines=deadlines
        )
        prompts = [make_prompt("0", tokens=[4, 2]), make_prompt("1", tokens=[3])]
        self.generation = SimpleNamespace(
            source=SimpleNamespace(prompts=lambda split: prompts),
            pace=SimpleNamespace(needed_s={"batch_s": 12.0}.get),
        )
        self.waited_for: list[str] = []
        waiting = SimpleNamespace(begin=lambda what, **about: self.waited_for.append(what))
        self.dashboard = SimpleNamespace(
            progress=lambda *args: self.told.append(args), waiting=waiting
        )
        self.told: list[tuple] = []
        self.done: list = []

    def publishes_again(self, version):
        self.told.append(("again", version))

    async def begun(self):
        pass

    async def next_batch(self, step):
        group = make_group((1.0, 0.0), lengths=(2, 3), version=step - 1)
        return make_batch(step, [group]), StepStats(issued=step)

    async def snapshot(self, unfinished):
        self.told.append(("snapshot", unfinished.step))

    def weights_exist(self, step):
        self.told.append(("started", step))

    def step_finished(self, done):
        self.told.append(("finished", done.step, done.stats.issued))
        self.done.append(done)


def make(loop, controller=None):
    controller, publisher = controller or FakeController(), Published()
    return ControllerPort(controller, loop, publisher), controller, publisher


def settle(loop):
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)


def test_a_step_is_told_in_order(loop):
    port, controller, publisher = make(loop)
    port.waits("importing", 20.0)
    port.publish(3, {})
    assert not port.training
    for step in (4, 5):
        batch = port.next_batch(step)
        # The rows that the config makes of the group: two samples of 2 and 3 tokens.
        assert batch["rl_mask"].sum() == 5 and batch["rl_staleness"].max() == 1
        assert batch["rl_advantages"].max() == 0.5 and batch["rl_advantages"].min() == -0.5
        assert port.training
        port.publish(step, {})
        port.step_done(step, {"loss": step})
    settle(loop)
    assert controller.told == [("started", 3), ("finished", 4, 4), ("finished", 5, 5)]
    # Once: a later step compiles nothing.
    first = "the first train step, which the trainer compiles"
    assert controller.waited_for == ["importing", first]
    # -1: waits until the first is written; 0: forgets the buffers of the one before
    assert publisher.steps == [3, -1, 0, 4, 0, 5]
    assert [done.metrics["loss"] for done in controller.done] == [4, 5]
    assert controller.done[1].times.write_s == 0.25
    for done in controller.done:
        spans, times = sorted(done.times.spans, key=lambda span: span.began_s), done.times
        *earlier, waits, trains, hands_over, rest = [
            (s.activity, s.began_s, s.ended_s) for s in spans
        ]
        assert len(earlier) == (done.step == 4)  # the weights before the first step
        assert waits[0] == "waits for the batch" and waits[2] - waits[1] == times.wait_s
        assert (trains[0], hands_over[0], rest[0]) == ("trains", "hands over weights", "trains")
        # Nothing is left out or counted twice.
        assert (waits[2], trains[2], hands_over[2]) == (trains[1], hands_over[1], rest[1])
        assert rest[2] - trains[1] == pytest.approx(times.train_s) and rest[2] == times.ended_s


def test_a_canary_of_the_given_tokens_reaches_the_publisher(loop):
    port, _, publisher = make(loop)
    assert port.canary_tokens.tolist() == [4, 2, 3]
    canary = Canary(port.canary_tokens, np.array([-1, -2], np.float32), 1e-4)
    port.publish(1, {}, canary)
    port.publish(2, {})
    assert publisher.canaries == [canary, None]


def test_all_parts_reach_the_publisher(loop):
    port, _, publisher = make(loop)
    port.publish(1, None, None, {"adapter": {}})
    assert publisher.parts == {"base": None, "adapter": {}}


def test_a_failure_of_the_flow_is_the_trainers(loop):
    class Broken(FakeController):
        async def next_batch(self, step):
            raise TrainingError("the filters are too strict")

    port, *_ = make(loop, Broken())
    with pytest.raises(TrainingError, match="filters are too strict"):
        port.next_batch(1)
    with pytest.raises(TrainingError, match="without a batch"):
        port.step_done(1, {})


def test_a_version_is_published_again_while_its_batch_is_waited_for(loop):
    class Damaged(FakeController):
        answers = [0, None, None, 1, 0, None]  # noqa: RUF012  versions that were found wrong

        async def begun(self):
            return self.answers.pop(0)

        async def next_batch(self, step):
            wrong = self.answers.pop(0)
            return await super().next_batch(step) if wrong is None else wrong

    port, controller, publisher = make(loop, Damaged(batch_s=60))
    port.publish(0, {})
    for step in (1, 2):
        assert port.next_batch(step)["rl_mask"].any()
        port.publish(step, {})
    settle(loop)
    # Version 0 before training begins, and 1 in the second step; it is too late for 0 then.
    assert publisher.steps == [0, 100, -1, 0, 1, 101, 0, 2] and controller.answers == []
    assert [told for told in controller.told if told[0] == "again"] == [("again", 0), ("again", 1)]


def test_waits_have_their_own_deadlines_and_leave_nothing_running(loop):
    ended = threading.Event()

    class Hanging(FakeController):
        async def next_batch(self, step):
            return await (super().next_batch(step) if step == 1 else hang())

        async def snapshot(self, unfinished):
            await hang()

    async def hang():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    port, *_ = make(loop, Hanging(batch_s=0.05, weights_s=0.04))
    port.next_batch(1)
    with pytest.raises(DeadlineError, match=r"batch of step 2.*0.05 s.* about 12 s.*batch_s"):
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

    class Evaluating(FakeController):
        async def begun(self):
            await asyncio.sleep(0)
            order.append("evaluated")

        async def next_batch(self, step):
            order.append(step)
            return await super().next_batch(step)

    port, *_ = make(loop, Evaluating(batch_s=0.05, startup_s=0.05))
    for step in (1, 2):
        port.next_batch(step)
    assert order == ["evaluated", 1, 2]
    assert deadlines_s == [None, 0.1, 0.05]  # start-up counts once


def test_a_requested_stop_is_decided_at_the_end_of_a_step_with_a_checkpoint(loop):
    port, *_ = make(loop)
    assert port.decide(1) == (False, False) and not port.stopping
    port.request_stop()
    assert port.stopping
    decision = port.decide(2)
    assert decision.save and decision.stop


@pytest.mark.parametrize(
    ("compiles", "key"), [(True, "rlax.deadlines.startup_s"), (False, "rlax.deadlines.group_s")]
)
def test_a_colocated_engine_that_compiles_has_as_long_as_its_start_may_take(loop, compiles, key):
    class Asked(Devices):
        asked: tuple[float, str] | None = None

        def train(self, deadline_s, key):
            self.asked = deadline_s, key

    devices = Asked()
    devices.compiles = lambda: compiles
    controller = FakeController(group_s=7.0, startup_s=70.0)
    port = ControllerPort(controller, loop, Published(), devices=devices)
    port.publish(0, {})
    port.next_batch(1)
    assert devices.asked == (70.0 if compiles else 7.0, key)
