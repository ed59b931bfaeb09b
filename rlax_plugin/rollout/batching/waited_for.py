"""Requests that tasks on an event loop wait for, while the engine's thread generates them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rlax_plugin.base.types import Attempt, Key, Request, Sampled
from rlax_plugin.rollout.batching.jobs import Job


class WaitedFor:
    """Turns requests into jobs that report to the running event loop.

    Args:
      on_reply: called on the loop with each request that is complete or reports its progress.

    Attributes:
      jobs: one per request, abandoned once ``ended`` is done.
      ended: done once all are complete, or with the first error, also an error of ``on_reply``.
    """

    def __init__(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ):
        self._loop = asyncio.get_running_loop()
        self._on_reply = on_reply
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.jobs = [
            Job(
                request,
                deliver=functools.partial(self._on_loop, self._tell, True, request.key),
                report=functools.partial(self._on_loop, self._tell, False, request.key),
                fail=functools.partial(self._on_loop, self._fail),
                abandoned=self.ended.done,
            )
            for request in requests
        ]
        self._open = {job.request.key: job for job in self.jobs}

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(function, *arguments)

    def _tell(self, ends: bool, key: Key, samples: list[Sampled]) -> None:
        if self.ended.done() or key not in self._open:
            return
        try:
            self._on_reply(key, samples)
        except Exception as error:  # noqa: BLE001 - raised by generate
            self.ended.set_exception(error)
            return
        if ends:
            self._close(key)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def open(self) -> Iterator[Job]:
        """Returns the jobs that tasks still wait for."""
        return iter(() if self.ended.done() else tuple(self._open.values()))

    def give_up(self, job: Job) -> None:
        """Stops waiting for a job; the engine then finds it ``unwanted``."""
        job.given_up = True
        self._close(job.request.key)

    def _close(self, key: Key) -> None:
        del self._open[key]
        if not self._open:
            self.ended.set_result(None)


class AllWaitedFor:
    """All requests that are waited for. Lives on the event loop, as ``WaitedFor`` does."""

    def __init__(self) -> None:
        self._all: set[WaitedFor] = set()

    @contextlib.contextmanager
    def waiting(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> Iterator[WaitedFor]:
        """Waits for requests as long as the context lasts; its end abandons them."""
        one = WaitedFor(requests, on_reply)
        self._all.add(one)
        try:
            yield one
        finally:
            self._all.discard(one)
            one.ended.cancel()  # no-op unless the wait was cancelled

    def unfinished(self) -> dict[Attempt, int]:
        """See ``RolloutEngine.unfinished``."""
        jobs = (job for waited_for in self._all for job in waited_for.open())
        return {
            (job.request.key, job.request.attempt): sum(s.finish is None for s in job.samples)
            for job in jobs
        }

    def give_up(
        self,
        unwanted: Collection[Attempt],
        oldest: int,
        in_slots: Mapping[Job, Mapping[int, tuple[int, int]]],
    ) -> dict[Attempt, tuple[int, ...]]:
        """Implements ``RolloutEngine.give_up``.

        Args:
          in_slots: see ``Scheduler.in_slots``; no sample may be admitted to a slot meanwhile.
        """
        found: dict[Attempt, tuple[int, ...]] = {}
        for waited_for in tuple(self._all):
            for job in waited_for.open():
                attempt, slots = (job.request.key, job.request.attempt), in_slots.get(job, {})
                if attempt in unwanted or (not job.complete and _too_old(job, slots, oldest)):
                    found[attempt] = _tokens(job, slots)
                    waited_for.give_up(job)
                elif job.trains:
                    job.min_version = max(job.min_version, oldest)
        return found


def _too_old(job: Job, slots: Mapping[int, tuple[int, int]], oldest: int) -> bool:
    if not job.trains or job.request.key.sample is not None:
        return False  # what becomes of a group with its later turns is for the trainer to say
    versions = [int(s.versions[0]) for s in job.samples if len(s.versions)]
    versions += [version for version, _ in slots.values()]
    return bool(versions) and min(versions) < oldest


def _tokens(job: Job, slots: Mapping[int, tuple[int, int]]) -> tuple[int, ...]:
    """Returns the tokens so far of each sample that is not finished."""
    return tuple(
        len(s.tokens) + slots.get(index, (0, 0))[1]
        for index, s in enumerate(job.samples)
        if s.finish is None
    )
