"""The trainer's side of the controller: two threads meet here and nowhere else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from rlax_plugin.concurrency.supervision import result_within
from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import DeadlineError, TrainingError
from rlax_plugin.metrics.step import FinishedStep, StepStats, StepTimes
from rlax_plugin.ports.protocols import Arrays, TrainerPort
from rlax_plugin.rollouts.pace import Pace
from rlax_plugin.types import Canary, Group, Prompt, TrainBatch
from rlax_plugin.weights.publisher import Publisher

T = TypeVar("T")
_CANARY_TOKENS = 16
Generated = tuple[tuple[Group, ...], StepStats]
BuildBatch = Callable[[int, tuple[Group, ...]], TrainBatch]


def canary_tokens(prompts: Sequence[Prompt], max_prompt_tokens: int) -> np.ndarray:
    """int32 [at most 16]: the first prompts, one behind the other, cut to what fits a prompt."""
    limit = min(_CANARY_TOKENS, max_prompt_tokens)
    found = np.zeros(0, np.int32)
    for prompt in prompts:
        if found.size >= limit:
            break
        found = np.concatenate((found, prompt.tokens))
    return found[:limit].astype(np.int32)


class Link(TrainerPort):
    """Implements ``TrainerPort`` on top of the controller and a ``Publisher``.

    Args:
      loop: the controller's event loop, which runs on another thread.
      begun: run on the event loop, before the first batch; returns once the run has recovered and
        evaluated what it starts from.
      next_groups: run on the event loop; waits for the groups of a step.
      started: called on the event loop with the first published step, when weights exist.
      finished: called on the event loop with each finished step.
      canary_tokens: see ``TrainerPort``.
      progress: called on the event loop with (phase, done, of, note).
      snapshot: run on the event loop before each checkpoint, with what is known of its step before
        the trainer has reported it; on disk when it returns.
      pace: knows what a batch needs; None: nobody does.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        section: RlaxSection,
        canary_tokens: np.ndarray,
        begun: Callable[[], Coroutine[Any, Any, None]],
        next_groups: Callable[[int], Coroutine[Any, Any, Generated]],
        publisher: Publisher,
        build_batch: BuildBatch,
        started: Callable[[int], None],
        finished: Callable[[FinishedStep], None],
        snapshot: Callable[[FinishedStep], Coroutine[Any, Any, None]],
        progress: Callable[[str, int, int, str], None],
        pace: Pace | None = None,
    ):
        self._loop, self._section = loop, section
        self._begun, self._next_groups = begun, next_groups
        self._publisher, self._build_batch = publisher, build_batch
        self._started, self._finished, self._snapshot = started, finished, snapshot
        self._progress, self._canary_tokens = progress, canary_tokens
        self._pace = pace
        self._first_publish = True
        self._stop = False
        self._current: Generated | None = None
        self._times = StepTimes()
        self._batch_at_s = 0.0
        self._last_done_s = time.perf_counter()

    def _on_loop(
        self,
        work: Coroutine[Any, Any, T],
        what: str,
        deadline_s: float | None,
        key: str,
        needed_s: Callable[[], float | None] = lambda: None,
    ) -> T:
        def late(given_s: float) -> DeadlineError:
            return DeadlineError(what, given_s, f"rlax.deadlines.{key}", needed_s())

        return result_within(work, self._loop, deadline_s, late)

    def next_batch(self, step: int) -> Mapping[str, np.ndarray]:
        started = time.perf_counter()
        first = self._current is None
        deadline_s = self._section.deadlines.batch_s
        if first:
            # No deadline of its own: each group of an evaluation has one.
            self._on_loop(self._begun(), "what precedes training", None, "")
            deadline_s += self._section.deadlines.startup_s  # engines may compile for it
        self._current = self._on_loop(
            self._next_groups(step),
            f"the batch of step {step}",
            deadline_s,
            "batch_s",
            lambda: self._pace and self._pace.needed_s("batch_s"),
        )
        batch = self._build_batch(step, self._current[0])
        self._batch_at_s = time.perf_counter()
        if first:  # what came before it was start-up, not a step
            started = self._last_done_s = self._batch_at_s
        self._times.wait_s = self._batch_at_s - started
        return batch.arrays

    @property
    def canary_tokens(self) -> np.ndarray:
        return self._canary_tokens

    def publish(self, step: int, arrays: Arrays, canary: Canary | None = None) -> None:
        started = time.perf_counter()
        self._publisher.publish(step, arrays, canary)
        self._times.publish_s = time.perf_counter() - started
        if self._first_publish:
            self._first_publish = False
            self._loop.call_soon_threadsafe(self._started, step)

    def step_done(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._current is None:
            raise TrainingError(f"step {step} ended without a batch")
        now = time.perf_counter()
        self._times.train_s = now - self._batch_at_s
        self._times.whole_s = now - self._last_done_s
        self._last_done_s = now
        done = FinishedStep(step, *self._current, metrics, self._times)
        self._times = StepTimes()
        self._loop.call_soon_threadsafe(self._finished, done)

    def before_checkpoint(self, step: int) -> None:
        deadline_s = self._section.deadlines.weights_s
        what = f"the controller's snapshot of step {step}"
        groups, stats = self._current or ((), StepStats())
        unfinished = FinishedStep(step, groups, stats, {}, self._times)
        self._on_loop(self._snapshot(unfinished), what, deadline_s, "weights_s")

    def progress(self, phase: str, done: int, of: int, note: str = "") -> None:
        self._loop.call_soon_threadsafe(self._progress, phase, done, of, note)

    @property
    def training(self) -> bool:
        """Whether a step has begun, so that there is something to finish and to save."""
        return self._current is not None

    @property
    def stop_requested(self) -> bool:
        return self._stop

    def request_stop(self) -> None:
        """Makes the trainer checkpoint and return after the step it is in."""
        self._stop = True
