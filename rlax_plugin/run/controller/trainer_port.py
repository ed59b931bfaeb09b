"""The trainer's side of the controller, the only place where their two threads meet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlax_plugin.base.concurrency.devices import Devices
from rlax_plugin.base.concurrency.loop_thread import result_within
from rlax_plugin.base.errors import DeadlineError, TrainingError
from rlax_plugin.base.liveness.activity import Activity, ends_at
from rlax_plugin.base.types import TrainBatch
from rlax_plugin.ports.orders import Order
from rlax_plugin.ports.training import Decision, NewWeights, TrainerPort
from rlax_plugin.rollout.worker.colocated import longest_call
from rlax_plugin.run.controller.controller import Controller
from rlax_plugin.run.hosts.following import START
from rlax_plugin.run.hosts.leading import Leader
from rlax_plugin.run.metrics.spans import TRAINER, Span
from rlax_plugin.run.metrics.step import FinishedStep, StepStats, StepTimes
from rlax_plugin.training.objective import batches
from rlax_plugin.weights.publisher import Publisher
from rlax_plugin.weights.verification import canary_tokens

T = TypeVar("T")
_FIRST_STEP_S = 20.0  # to compile it, typically


class ControllerPort(TrainerPort):
    """The controller as the trainer's thread sees it: each call waits for its loop or notifies it.

    Args:
      controller: lives on ``loop``, which runs on another thread.
      publisher: takes the weights.
      leader: of the other hosts; None: there are none.
      devices: are given to the trainer with each batch, until it waits for the next one; None: it
        has devices of its own.

    Attributes:
      activity: the present activity of the trainer's thread.
    """

    def __init__(
        self,
        controller: Controller,
        loop: asyncio.AbstractEventLoop,
        publisher: Publisher,
        leader: Leader | None = None,
        devices: Devices | None = None,
    ):
        self._controller, self._loop, self._publisher = controller, loop, publisher
        self._leader, self._sent_bytes, self._devices = leader, 0, devices
        self._section = section = controller.section
        prompts = (
            controller.run_state.prompts
            if section.trains_on_log
            else controller.generation.source.prompts("train")
        )
        self._canary_tokens = canary_tokens(prompts, section.rollouts.max_prompt_tokens)
        if leader is not None:
            self.followers = leader
            leader.tell_all(Order(START, arrays={"canary": self._canary_tokens}))
        self._first_publish = True
        self._stop = self._stops_here = False
        self._current: tuple[TrainBatch, StepStats] | None = None
        self._times = StepTimes()
        self._written: tuple[float, float] | None = None
        self._batch_at_s = 0.0
        self._last_done_s = time.perf_counter()
        self.activity = Activity()

    def _on_loop(
        self,
        work: Coroutine[Any, Any, T],
        what: str,
        deadline_s: float | None,
        key: str,
        needed_s: Callable[[], float | None] = lambda: None,
        used_s: float = 0.0,
    ) -> T:
        def late(left_s: float) -> DeadlineError:
            return DeadlineError(what, left_s + used_s, f"rlax.deadlines.{key}", needed_s())

        left_s = deadline_s if deadline_s is None or not used_s else max(deadline_s - used_s, 0.0)
        return result_within(work, self._loop, left_s, late)

    def _publish_again(self, version: int) -> None:
        # Other hosts would have to write as well. While a step is computed the next version comes.
        if self._leader is None and self._publisher.holds(version):
            self._loop.call_soon_threadsafe(self._controller.publishes_again, version)
            self._publisher.again()

    def _batch_needs_s(self) -> float | None:
        return self._controller.generation.pace.needed_s("batch_s")

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        started = time.perf_counter()
        first = self._current is None
        deadline_s = self._section.deadlines.batch_s
        if self._devices is not None:
            self._devices.rest()
        if first:
            # No deadline of its own: each group of an evaluation has one.
            before = "what precedes training"
            while (wrong := self._on_loop(self._controller.begun(), before, None, "")) is not None:
                self._publish_again(wrong)
            deadline_s += self._section.deadlines.startup_s  # engines may compile for it
        what = f"the batch of step {step}"
        having = "" if self._devices is None else ", while generation has the devices"
        ends = ends_at("rlax.deadlines.batch_s", deadline_s)
        self.activity.begins(f"waiting for {what}{having}", ends)
        began_s, used_s = time.perf_counter(), 0.0
        while True:
            work = self._controller.next_batch(step)
            needs = self._batch_needs_s
            found = self._on_loop(work, what, deadline_s, "batch_s", needs, used_s)
            if not isinstance(found, int):
                break
            self._publish_again(found)
            used_s = time.perf_counter() - began_s
        if self._devices is not None:
            turn_s, key = longest_call(self._devices, self._section.deadlines)
            call = "waiting for the engine's present call to end, which has the devices"
            self.activity.begins(call, ends_at(key, turn_s))
            self._devices.train(turn_s, key)
        if first:  # with adapters the first version has a copy of the base
            self._publisher.wait()
        self._publisher.forget()
        self._current = found
        batch, _ = found
        arrays = batches.arrays_of(self._section, self._controller.algorithm, batch)
        self._batch_at_s = time.perf_counter()
        if first:  # what came before it was start-up, not a step
            started = self._last_done_s = self._batch_at_s
            self.waits("the first train step, which the trainer compiles", _FIRST_STEP_S)
        self._times.wait_s = self._batch_at_s - started
        self.activity.begins(f"training step {step}")
        self._busy("waits for the batch", started, self._batch_at_s)
        return arrays

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._canary_tokens

    def _committed(self) -> None:
        """Returns once the batch is on disk; the results of its step must not be seen before."""
        if self._current is None or (committed := self._current[1].committed) is None:
            return
        weights_s = self._section.deadlines.weights_s
        try:
            committed.result(weights_s)
        except TimeoutError:
            if committed.done():
                raise
            what = f"writing the batch of step {self._current[0].step}"
            raise DeadlineError(what, weights_s, "rlax.deadlines.weights_s") from None

    def take(self, weights: NewWeights) -> None:
        started = time.perf_counter()
        weights_s = self._section.deadlines.weights_s
        ends = ends_at("rlax.deadlines.weights_s", weights_s)
        self._committed()
        self.activity.begins(f"handing over version {weights.step} to the publisher", ends)
        self._stops_here = self._stop
        if self._stops_here:  # a checkpoint of it is saved afterwards
            self._publisher.will_write(weights.step)
        self._publisher.publish(weights)
        if self._leader is not None:
            self._publisher.forget()
        self._times.publish_s = (ended := time.perf_counter()) - started
        self._busy("hands over weights", started, ended)
        if self._first_publish:
            self._first_publish = False
            if self._devices is not None:
                self._devices.rest()  # the engine is built while the trainer compiles its step
            self._loop.call_soon_threadsafe(self._controller.weights_exist, weights.step)

    def decide(self, step: int) -> Decision:
        # Read once: a signal may come between two questions. With colocated generation that was
        # before the version was published, which is written if the run stops here.
        stop = self._stop if self._devices is None else self._stops_here
        decision = Decision(save=stop, stop=stop)
        if self._leader is not None:
            self._leader.decided(step, decision)
        return decision

    def before_checkpoint(self, step: int) -> None:
        self._publisher.will_write(step)  # so that the run's newest weights are not older
        what = f"the controller's snapshot of step {step}"
        ends = ends_at("rlax.deadlines.weights_s", self._section.deadlines.weights_s)
        self.activity.begins(f"writing {what}", ends)
        self._committed()
        batch, stats = self._current or (TrainBatch(step, (), ()), StepStats())
        unfinished = FinishedStep(batch, stats, {}, self._times)
        work = self._controller.snapshot(unfinished)
        started = time.perf_counter()
        self._on_loop(work, what, self._section.deadlines.weights_s, "weights_s")
        self.activity.begins(f"writing the trainer's checkpoint of step {step}")
        self._busy("saves the controller's state", started, time.perf_counter())

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._current is None:
            raise TrainingError(f"step {step} ended without a batch")
        self._committed()
        now = time.perf_counter()
        self.activity.begins(f"ending step {step}")
        self._times.train_s = now - self._batch_at_s
        self._times.whole_s = now - self._last_done_s
        self._times.write_s = self._publisher.last_s
        self._times.written_bytes = self._publisher.last_bytes
        self._times.ended_s = now
        self._times.spans += self._training_spans(now)
        written, self._written = self._written, self._publisher.last_written
        if self._written is not None and self._written != written:
            self._times.spans.append(Span("weights", "writes a version", *self._written))
        self._last_done_s = now
        done = FinishedStep(*self._current, metrics, self._times)
        if self._leader is not None:
            before, self._sent_bytes = self._sent_bytes, self._leader.sent_bytes
            done.sent_bytes = self._sent_bytes - before
        self._times = StepTimes()
        self._loop.call_soon_threadsafe(self._controller.step_finished, done)

    def _busy(self, activity: str, began_s: float, ended_s: float) -> None:
        self._times.spans.append(Span(TRAINER, activity, began_s, ended_s))

    def _training_spans(self, ended_s: float) -> list[Span]:
        """Returns the times since the batch in which nothing else of the trainer is known."""
        found, began_s = [], self._batch_at_s
        for span in (*self._times.spans, Span(TRAINER, "", ended_s, ended_s)):
            if span.began_s > began_s:
                found.append(Span(TRAINER, "trains", began_s, span.began_s))
            began_s = max(began_s, span.ended_s)
        return found

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        show = self._controller.dashboard.progress
        self._loop.call_soon_threadsafe(show, phase, done, of, note)

    def waits(self, what: str, typical_s: float = 0.0) -> None:
        begin = self._controller.dashboard.waiting.begin
        self._loop.call_soon_threadsafe(partial(begin, what, typical_s=typical_s))

    def found_damaged(self, what: str) -> None:
        self._controller.found_damaged(what)

    # --- for the caller of the trainer ------------------------------------------------------------

    @property
    def training(self) -> bool:
        """True once a step has begun, so that its end and a checkpoint are due."""
        return self._current is not None

    @property
    def stopping(self) -> bool:
        """True once a stop was requested."""
        return self._stop

    def request_stop(self) -> None:
        """Makes the trainer save a checkpoint and return after the current step."""
        self._stop = True
