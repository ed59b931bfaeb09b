"""The engine thread: it owns the slots, admits, decodes, and swaps weights between steps."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from maxtext_overrides.slots import MAX_STOP_IDS, Slots
from rlax_jetstream.scheduler import Job, Scheduler
from rlax_plugin.config import Rollouts
from rlax_plugin.errors import WeightsError, WorkerError
from rlax_plugin.protocols import PromptSource, RolloutEngine, WeightStore
from rlax_plugin.types import GroupRequest, Rollout, WeightVersion

if TYPE_CHECKING:
    from rlax_jetstream import JetstreamConfig

log = logging.getLogger("rlax.jetstream")

_IDLE_S = 60.0  # longest sleep of the idle thread; it is woken for everything that happens
_CLOSE_S = 10.0  # longest wait for the thread to leave a decode call

Fingerprint = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Swap:
    """Verified weights on their way to the engine thread."""

    version: int
    weights: Mapping[str, Any]
    done: Future[None]


class JetstreamEngine(RolloutEngine):
    """Rollout engine over ``Slots``; its thread starts at once and builds them.

    New weights: running samples finish on the old ones, nothing is admitted meanwhile, then the
    engine swaps. No request is dropped.

    Args:
      make_slots: called once, on the engine's thread.
      store: where weight versions are read from.
      rollouts: the ``rlax.rollouts`` section: limits, and settings of JetStream's own requests.
      config: this plug-in's options.
      make_prompt_source: tokenizer of JetStream's text requests; called when one arrives.
      fingerprint: name -> array to name -> uint32; default ``rlax_plugin.fingerprint``.
    """

    def __init__(
        self,
        *,
        make_slots: Callable[[], Slots],
        store: WeightStore,
        rollouts: Rollouts,
        config: JetstreamConfig,
        make_prompt_source: Callable[[], PromptSource],
        fingerprint: Fingerprint | None = None,
    ):
        self.rollouts = rollouts
        self.prompt_source = functools.cache(make_prompt_source)
        self._make_slots, self._store, self._config = make_slots, store, config
        self._fingerprint = fingerprint
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._waiting: list[Job] = []
        self._swap: _Swap | None = None
        self._closing = False
        self._error: Exception | None = None
        # Written by the engine thread only:
        self._version = -1
        self._weights: Mapping[str, Any] = {}
        self._active = 0
        self._slots: Slots | None = None
        self._ready: Future[Slots] = Future()
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="rlax-load")
        self._thread = threading.Thread(target=self._run, name="rlax-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # ---------------------------------------------------------------- called on the event loop

    async def generate(
        self, requests: Sequence[GroupRequest], on_group: Callable[[int, list[Rollout]], None]
    ) -> None:
        """See ``RolloutEngine``. Cancelling it frees the slots.

        Raises:
          WorkerError: a request exceeds the configured limits, or the engine has failed.
        """
        for request in requests:
            self.check(request)
        if not requests:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        left = len(requests)

        def take(group_id: int, rollouts: list[Rollout]) -> None:
            nonlocal left
            if ended.done():
                return
            try:
                on_group(group_id, rollouts)
            except Exception as error:  # noqa: BLE001 - raised by generate
                ended.set_exception(error)
                return
            left -= 1
            if left == 0:
                ended.set_result(None)

        def fail(error: Exception) -> None:
            if not ended.done():
                ended.set_exception(error)

        def on_loop(function: Callable[..., None], *arguments: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(function, *arguments)

        self.submit(
            Job(
                request,
                deliver=functools.partial(on_loop, take, request.group_id),
                fail=functools.partial(on_loop, fail),
                abandoned=ended.done,
            )
            for request in requests
        )
        try:
            await ended
        finally:
            ended.cancel()  # no-op unless this coroutine was cancelled
            with self._changed:
                self._changed.notify()

    async def load_weights(self, version: WeightVersion) -> None:
        """Pulls and verifies on a background thread; returns when the engine has swapped.

        Raises:
          WeightsError: the bytes are not what was announced; the old weights stay in use.
          WorkerError: the engine has failed.
        """
        slots = await asyncio.shield(asyncio.wrap_future(self._ready))
        loop = asyncio.get_running_loop()
        weights = await loop.run_in_executor(self._loading, self._pull, version, slots)
        swap = _Swap(version.version, weights, Future())
        with self._changed:
            self._raise_if_failed()
            if self._swap is not None:
                self._swap.done.cancel()
            self._swap = swap
            self._changed.notify()
        await asyncio.wrap_future(swap.done)  # cancelled: the engine thread forgets the swap

    @property
    def version(self) -> int:
        return self._version

    def health(self) -> dict[str, float]:
        """Figures; before the slots are built most are 0.

        Raises:
          WorkerError: the engine's thread has died.
        """
        with self._changed:
            self._raise_if_failed()
            waiting = sum(job.unadmitted for job in self._waiting)
        slots = self._slots
        return {
            "slots": float(self.rollouts.slots),
            "active": float(self._active),
            "waiting": float(waiting),
            "tokens_total": float(slots.tokens_total) if slots else 0.0,
            "steps_total": float(slots.steps_total) if slots else 0.0,
        }

    @property
    def ready(self) -> bool:
        """Whether requests can be drawn: built, compiled, and holding weights."""
        return self._error is None and self._version >= 0

    @property
    def backlog(self) -> int:
        """Samples that wait for a slot."""
        with self._changed:
            return sum(job.unadmitted for job in self._waiting)

    def check(self, request: GroupRequest) -> None:
        """Refuses what the slots cannot hold.

        Raises:
          WorkerError: names the group and the config key that limits it.
        """
        limits = self.rollouts
        sampling, length = request.sampling, len(request.prompt_tokens)
        problems = {
            f"{length} prompt tokens, rlax.rollouts.max_prompt_tokens is "
            f"{limits.max_prompt_tokens}": not 1 <= length <= limits.max_prompt_tokens,
            f"max_new_tokens {sampling.max_new_tokens}, rlax.rollouts.max_new_tokens is "
            f"{limits.max_new_tokens}": not 1 <= sampling.max_new_tokens <= limits.max_new_tokens,
            f"{len(sampling.stop_ids)} stop ids, at most {MAX_STOP_IDS} are supported": (
                len(sampling.stop_ids) > MAX_STOP_IDS
            ),
            "no seeds": not request.seeds,
        }
        for problem, found in problems.items():
            if found:
                raise WorkerError(f"group {request.group_id}: {problem}")

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queues groups. Any thread.

        Raises:
          WorkerError: the engine has failed or is closed.
        """
        with self._changed:
            self._raise_if_failed()
            self._waiting.extend(jobs)
            self._changed.notify()

    @staticmethod
    def add_services(server: Any, engine: JetstreamEngine) -> None:
        """Adds JetStream's own service to the worker's server."""
        from rlax_jetstream.driver import add_jetstream_service

        add_jetstream_service(server, engine)

    def close(self) -> None:
        """Ends the thread; what waits or runs fails. Idempotent; waits at most 10 s."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        atexit.unregister(self.close)
        self._loading.shutdown(wait=False, cancel_futures=True)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    # ---------------------------------------------------------------- other threads

    def _pull(self, version: WeightVersion, slots: Slots) -> Mapping[str, Any]:
        like = slots.variables_like()
        if unequal := sorted(like.keys() ^ version.tensors.keys()):
            raise WeightsError(
                f"version {version.version}: variable {unequal[0]!r} is "
                f"{'not published' if unequal[0] in like else 'not in the model'} "
                f"({len(unequal)} names differ)"
            )
        arrays = self._store.load(version.path, like)
        if self._fingerprint is None:
            from rlax_plugin.fingerprint import fingerprint

            self._fingerprint = fingerprint
        found = self._fingerprint(arrays)
        for name, spec in version.tensors.items():
            if (number := int(found[name])) != spec.fingerprint:
                raise WeightsError(
                    f"version {version.version}: variable {name!r} has fingerprint {number:#010x} "
                    f"on the device, {spec.fingerprint:#010x} was published"
                )
        return arrays

    def _run(self) -> None:
        scheduler: Scheduler | None = None
        try:
            self._slots = slots = self._make_slots()
            if self._config.warm_up:
                slots.warm_up(self.rollouts.group_size)
            scheduler = Scheduler(
                slots,
                arrival_steps=self._config.arrival_steps,
                linger_steps=self._config.linger_steps,
            )
            self._ready.set_result(slots)
            while self._turn(slots, scheduler):
                pass
        except Exception as error:
            log.exception("the rollout engine failed")
            self._end(error, scheduler)
        else:
            self._end(WorkerError("closed"), scheduler)

    def _turn(self, slots: Slots, scheduler: Scheduler) -> bool:
        """One round: forget, swap, admit, decode, deliver. False once the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work(scheduler), _IDLE_S)
            if self._closing:
                return False
            scheduler.drop([job for job in scheduler.jobs() if job.abandoned()])
            self._waiting = [job for job in self._waiting if not job.abandoned()]
            if self._swap is not None and self._swap.done.cancelled():
                self._swap = None
            if self._swap is not None and not scheduler.active:
                self._install(self._swap)
                self._swap = None
            # While weights wait, nothing is admitted: running samples finish on the old ones.
            prefills = [] if self._swap else scheduler.plan(self._waiting, self._version)
            self._waiting = [job for job in self._waiting if job.unadmitted]
            more_waits = self._swap is not None or self._admissible()
        slots.insert(self._weights, prefills)
        self._active = scheduler.active
        if scheduler.active:
            for job in scheduler.advance(self._weights, more_waits):
                job.deliver([r for r in job.rollouts if r is not None])
            self._active = scheduler.active
        return True

    def _has_work(self, scheduler: Scheduler) -> bool:
        if self._closing or self._swap is not None or scheduler.active:
            return True
        return self._admissible() or any(job.abandoned() for job in self._waiting)

    def _admissible(self) -> bool:
        """Whether a waiting group may be drawn with the weights in use."""
        return any(job.request.min_version <= self._version for job in self._waiting)

    def _install(self, swap: _Swap) -> None:
        if swap.done.set_running_or_notify_cancel():
            self._weights, self._version = swap.weights, swap.version
            swap.done.set_result(None)

    def _end(self, error: Exception, scheduler: Scheduler | None) -> None:
        failure = WorkerError(f"rollout engine: {error}")
        failure.__cause__ = error
        with self._changed:
            self._error = failure
            jobs = list(dict.fromkeys(self._waiting + list(scheduler.jobs() if scheduler else ())))
            self._waiting = []
            swap, self._swap = self._swap, None
        for job in jobs:
            job.fail(failure)
        if swap is not None and swap.done.set_running_or_notify_cancel():
            swap.done.set_exception(failure)
        if not self._ready.done():
            self._ready.set_exception(failure)
        self._active = 0

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error
