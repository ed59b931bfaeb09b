"""Continuous batching: which sample runs in which slot. No JAX, no threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from maxtext_overrides.slots import Finished, Prefill, Slots
from rlax_plugin.types import GroupRequest, Rollout


@dataclass(eq=False, slots=True)
class Job:
    """A group on its way through the engine.

    Attributes:
      request: what is to be drawn.
      deliver: takes the rollouts in index order; called on the engine's thread.
      fail: takes what ended the engine before the group was complete.
      abandoned: whether nobody waits for the group any more.
      admitted: samples that have been given a slot so far.
      rollouts: one per sample, None until it ends.
    """

    request: GroupRequest
    deliver: Callable[[list[Rollout]], None]
    fail: Callable[[Exception], None]
    abandoned: Callable[[], bool] = lambda: False
    admitted: int = 0
    rollouts: list[Rollout | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rollouts = [None] * len(self.request.seeds)

    @property
    def unadmitted(self) -> int:
        return len(self.rollouts) - self.admitted


@dataclass(frozen=True, slots=True)
class _Running:
    job: Job
    index: int
    version: int


class Scheduler:
    """Fills free slots with waiting samples, oldest group first, and collects what ends.

    Args:
      slots: the decode engine.
      arrival_steps: decode steps between looks for arrivals while slots are free.
      linger_steps: steps a freed slot may wait for others, so that one prefill fills several.
    """

    def __init__(self, slots: Slots, *, arrival_steps: int, linger_steps: int):
        self._slots = slots
        self._arrival_steps, self._linger_steps = arrival_steps, linger_steps
        self._running: dict[int, _Running] = {}

    @property
    def active(self) -> int:
        return len(self._running)

    def jobs(self) -> set[Job]:
        """Groups with at least one sample in a slot."""
        return {running.job for running in self._running.values()}

    def plan(self, waiting: Iterable[Job], version: int) -> list[Prefill]:
        """Assigns free slots to waiting samples that may be drawn with ``version``.

        A group that does not fit is admitted in parts, its prompt prefilled once per part.
        """
        free, prefills = self._slots.free_slots, []
        for job in waiting:
            count = min(len(free), job.unadmitted)
            if count == 0 or job.request.min_version > version:
                continue
            taken, free = tuple(free[:count]), free[count:]
            indices = range(job.admitted, job.admitted + count)
            for slot, index in zip(taken, indices, strict=True):
                self._running[slot] = _Running(job, index, version)
            job.admitted += count
            request = job.request
            seeds = tuple(request.seeds[i] for i in indices)
            prefills.append(Prefill(request.prompt_tokens, taken, seeds, request.sampling))
        return prefills

    def advance(self, weights: Mapping[str, Any], more_waits: bool) -> list[Job]:
        """Decodes for a while and returns the groups that are complete now.

        With ``more_waits``, or without a free slot, that is until a slot frees; otherwise a few
        steps, so that arrivals get in quickly.
        """
        slots = self._slots
        if more_waits or not slots.free_slots:
            done = self._finish(slots.decode(weights, slots.max_new_tokens, True))
            if more_waits and self.active and self._linger_steps:
                done += self._finish(slots.decode(weights, self._linger_steps, False))
            return done
        return self._finish(slots.decode(weights, self._arrival_steps, True))

    def drop(self, jobs: Iterable[Job]) -> None:
        """Frees the slots of groups nobody waits for."""
        gone = set(jobs)
        slots = [slot for slot, running in self._running.items() if running.job in gone]
        for slot in slots:
            del self._running[slot]
        if slots:
            self._slots.release(slots)

    def _finish(self, finished: list[Finished]) -> list[Job]:
        done = []
        for sample in finished:
            running = self._running.pop(sample.slot)
            job, request = running.job, running.job.request
            stopped = int(sample.tokens[-1]) in request.sampling.stop_ids
            job.rollouts[running.index] = Rollout(
                group_id=request.group_id,
                index=running.index,
                seed=request.seeds[running.index],
                tokens=sample.tokens,
                logprob_full=sample.logprob_full,
                logprob_sampled=sample.logprob_sampled,
                versions=np.full(len(sample.tokens), running.version, np.int32),
                finish_reason="stop" if stopped else "length",
            )
            if all(rollout is not None for rollout in job.rollouts):
                done.append(job)
        return done
