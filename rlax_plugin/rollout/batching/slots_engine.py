"""A rollout engine over slots: its thread admits, decodes, and swaps weights between steps."""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Attempt, Key, Request, Sampled, WeightVersion
from rlax_plugin.config import PositiveInt, Rollouts, Section
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.loaded import Loaded
from rlax_plugin.ports.protocols import (
    Arrays,
    BuildContext,
    PromptSource,
    RolloutEngine,
    WeightStore,
)
from rlax_plugin.rollout.batching.decode_engine import DecodeSlots
from rlax_plugin.rollout.batching.jobs import SIDE_CHANNELS, Job, rejection
from rlax_plugin.rollout.batching.scheduler import Scheduler
from rlax_plugin.rollout.batching.swaps import TOTALS, Swaps, laid_out
from rlax_plugin.rollout.batching.waited_for import AllWaitedFor
from rlax_plugin.weights.verification import read_weights

log = logging.getLogger("rlax.engine")
_IDLE_S = 60.0  # longest sleep of the idle thread; it is woken for everything that happens
_STREAM_S = 0.05  # between two reads of the device for clients that see tokens as they come
_CLOSE_S = 10.0  # longest wait for the thread to leave a decode call
_LONGEST_CALL = 256  # decode steps, where nothing is to be looked for but that the engine is alive


class SlotsConfig(Section):
    """Options of an engine over slots that MaxText's model fills."""

    arrival_steps: PositiveInt = Field(
        4, description="number of decode steps between checks for new requests while slots are free"
    )
    linger_steps: Annotated[int, Field(ge=0, le=2)] = Field(
        2,
        description="number of decode steps for which a free slot may stay empty until more slots "
        "are free, so that one prefill fills several of them",
    )
    stop_string_steps: PositiveInt = Field(
        8,
        description="number of decode steps between checks for stop strings, if the prompt source "
        "has some; up to so many tokens are generated behind one, and dropped",
    )
    interrupt_steps: PositiveInt = Field(
        32,
        description="number of decode steps between checks for calls that JetStream clients "
        "have cancelled; with on_new_weights: continue or discard, also for new weights; with "
        "continue, a report that progress_s makes due is sent at the next such check",
    )
    warm_up: bool = Field(
        True,
        description="true: compile all programs, including at most ten for prefill, and six more "
        "where contexts are kept, before the worker registers, so that no request waits for a "
        "compilation",
    )
    keep_contexts: bool = Field(
        True,
        description="true: where episodes have several turns, a free slot keeps the context of its "
        "last sample until it is needed, so that the next turn prefills only what is new. It has "
        "no effect with rlax.deterministic, with quantize_kvcache, after new weights, and for "
        "models with recurrent layers, compressed or chunked attention, MoBA or an indexer",
    )
    maxtext: dict[str, bool | int | float | str] = Field(
        {},
        description="MaxText keys that workers set differently from the trainer, such as their "
        "mesh",
    )

    def longest_call(self, rollouts: Rollouts) -> int:
        """Maximum decode steps of one call; heartbeats report its tokens only after it returns."""
        if rollouts.on_new_weights == "finish":
            return min(_LONGEST_CALL, rollouts.max_new_tokens)
        return self.interrupt_steps


class SlotsEngine(RolloutEngine):
    """Rollout engine over ``DecodeSlots``; its thread starts at once and builds them.

    New weights, with ``rollouts.on_new_weights`` ``finish``: running samples finish on the old
    weights, no sample is admitted meanwhile, then the engine swaps. With ``continue`` and
    ``discard`` it swaps after the decode call in progress; running samples continue after the
    tokens they have, with caches recomputed by a prefill of prompt and tokens (AReaL, arXiv
    2505.24298), or start again. No request is dropped. When weights are about to be swapped, so
    that all slots are free, the canary is decoded with them; until they are verified and in use,
    no sample is admitted.

    Args:
      make_slots: called once, on the engine's thread.
      store: weight store to read versions from.
      rollouts: the ``rlax.rollouts`` section.
      config: the engine's options.
      make_prompt_source: called when a text is to be read or written, as with stop strings.
      deterministic: ``rlax.deterministic``, see ``Scheduler``.
      max_context: longest context, with those of later turns; 0: ``max_prompt_tokens``.
      fingerprint: name -> array to name -> uint32; default ``rlax_plugin.api.fingerprint``.
      generating: see ``BuildContext``.
    """

    reads_memory = True

    def __init__(
        self,
        *,
        make_slots: Callable[[], DecodeSlots],
        store: WeightStore,
        rollouts: Rollouts,
        config: SlotsConfig,
        make_prompt_source: Callable[[], PromptSource],
        deterministic: bool = False,
        max_context: int = 0,
        fingerprint: Callable[[Arrays], Mapping[str, Any]] | None = None,
        generating: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self.rollouts = rollouts
        self.prompt_source = functools.cache(make_prompt_source)
        self._make_slots, self._store, self.config = make_slots, store, config
        self._deterministic, self._fingerprint = deterministic, fingerprint
        self._generating = generating
        self._max_context = max_context or rollouts.max_prompt_tokens
        self._waited_for, self._changed = AllWaitedFor(), threading.Condition()
        # Guarded by _changed:
        self._waiting: list[Job] = []
        self._swaps, self._closing = Swaps(), False
        self._error: Exception | None = None
        self._active, self._decode_s = 0, 0.0  # written by the engine thread only
        self._report_at_s, self._stream_at_s = time.monotonic() + rollouts.progress_s, 0.0
        self._slots: DecodeSlots | None = None
        self._scheduler: Scheduler | None = None
        self._ready: Future[DecodeSlots] = Future()
        self._loading = ThreadPoolExecutor(1, thread_name_prefix="rlax-load")
        self._thread = threading.Thread(target=self._run, name="rlax-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @classmethod
    def of(
        cls, config: SlotsConfig, context: BuildContext, make_slots: Callable[[], DecodeSlots]
    ) -> Self:
        """Builds the engine that a run's config chooses; see the arguments of the class."""
        section = context.section
        return cls(
            make_slots=make_slots,
            store=context.part("weight_store", section.weights.store, "rlax.weights.store"),
            rollouts=section.rollouts,
            config=config,
            make_prompt_source=lambda: context.part(
                "prompt_source", section.prompt_source, "rlax.prompt_source"
            ),
            deterministic=section.deterministic,
            max_context=section.max_context_tokens,
            generating=context.generating,
        )

    async def generate(
        self, requests: Sequence[Request], on_reply: Callable[[Key, Sequence[Sampled]], None]
    ) -> None:
        """See ``RolloutEngine``. Cancelling it frees the slots.

        Raises:
          WorkerError: the engine has failed, or a sample would go on that slots have no room for.
        """
        mode, resumed = self.rollouts.on_new_weights, [s for one in requests for s in one.resume]
        if mode != "continue" and any(s.finish is None and len(s.tokens) for s in resumed):
            raise WorkerError(f"a sample is to go on, rlax.rollouts.on_new_weights is {mode}")
        if any(request.sampling.stop_strings for request in requests):
            # A tokenizer may take a second to load, too long for this loop and for the engine's.
            await asyncio.to_thread(self.prompt_source)
        if not requests:
            return
        try:
            with self._waited_for.waiting(requests, on_reply) as waited_for:
                self.submit(waited_for.jobs)
                await waited_for.ended
        finally:
            with self._changed:
                self._changed.notify()

    def give_up(self, unwanted: Collection[Attempt], oldest: int) -> dict[Attempt, tuple[int, ...]]:
        """See ``RolloutEngine``; slots are freed after the decode call in progress."""
        with self._changed:  # so that nothing is admitted meanwhile
            in_slots = self._scheduler.in_slots() if self._scheduler else {}
            found = self._waited_for.give_up(unwanted, oldest, in_slots)
            self._changed.notify()
        return found

    def unfinished(self) -> Mapping[Attempt, int]:
        """See ``RolloutEngine``."""
        return self._waited_for.unfinished()

    async def prepare(self) -> None:
        """Returns once the slots are built and, with ``warm_up``, all their programs compiled.

        Raises:
          WorkerError: the engine has failed.
        """
        ready = asyncio.wrap_future(self._ready)
        ready.add_done_callback(_ignore)  # who waited may have been cancelled by then
        await asyncio.shield(ready)

    def preparing(self) -> str:  # libraries are imported before the slots are built
        return "importing" if self._slots is None else "compiling"

    async def load(self, version: WeightVersion) -> Loaded:
        """See ``RolloutEngine``; on a background thread, while samples are generated."""
        await self.prepare()
        return await asyncio.get_running_loop().run_in_executor(self._loading, self._read, version)

    async def use(self, loaded: Loaded) -> None:
        """Returns when the engine has swapped; with ``finish``, running samples end before it."""
        await self._between_samples(loaded, None)

    async def score(self, tokens: np.ndarray, loaded: Loaded | None = None) -> np.ndarray:
        """See ``RolloutEngine``; on a background thread."""
        await self.prepare()
        weights = self._swaps.weights if loaded is None else loaded.arrays
        if not weights:
            raise WorkerError("there are no weights to score with")
        return await asyncio.get_running_loop().run_in_executor(
            self._loading, self._scored, weights, tokens
        )

    async def decode_greedy(
        self, tokens: np.ndarray, count: int, loaded: Loaded
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """See ``RolloutEngine``; it changes to the new weights, so that ``use`` need not."""
        await self.prepare()
        rounds = self._ready.result().rounds_caches
        return None if rounds else await self._between_samples(loaded, (tokens, count))

    async def _between_samples(self, loaded: Loaded, greedy: tuple[np.ndarray, int] | None) -> Any:
        with self._changed:
            self._raise_if_failed()
            done = self._swaps.ask(loaded, greedy)
            self._changed.notify()
        return await asyncio.wrap_future(done)  # cancelled: the thread forgets the swap

    @property
    def version(self) -> int:
        return self._swaps.version

    def health(self) -> dict[str, float]:
        """Figures; before the slots are built most are 0.

        Raises:
          WorkerError: the engine's thread has died.
        """
        with self._changed:
            self._raise_if_failed()
        slots, waiting = self._slots, self.backlog
        return {
            "slots": float(self.rollouts.slots),
            "active": float(self._active),
            "waiting": float(waiting),
            "decode_s_total": self._decode_s,
            "silent_tokens": float(self.config.longest_call(self.rollouts)),
            **{name: float(getattr(slots, name, 0)) for name in TOTALS},
        }

    def progress(self) -> dict[Attempt, int]:
        """See ``RolloutEngine``: tokens of a running request; for a waiting one, decode steps.

        A request that waits progresses as the engine does. Both figures change with each decode
        call, see ``SlotsConfig.longest_call``.
        """
        if (slots := self._slots) is None or (scheduler := self._scheduler) is None:
            return {}
        with self._changed:
            figures = {job: slots.steps_total for job in self._waiting} | scheduler.figures()
        return {(one.request.key, one.request.attempt): n for one, n in figures.items()}

    @property
    def capabilities(self) -> Capabilities:
        """See ``RolloutEngine``; the vocabulary is known once the slots are built."""
        return Capabilities(
            slots=self.rollouts.slots,
            vocabulary=self._slots.vocabulary if self._slots else 0,
            context_tokens=self._max_context + self.rollouts.max_new_tokens,
            side=SIDE_CHANNELS,
            seeded=True,
            logprobs=True,
            resumes=True,
            scores=True,
            stop_strings=True,
        )

    @property
    def ready(self) -> bool:
        """True if requests can be generated: it is built, compiled, and holds weights."""
        return self._error is None and self.version >= 0

    @property
    def paused(self) -> bool:
        """True while no sample may be put into a slot: weights wait, or are being verified."""
        return self._swaps.paused

    @property
    def backlog(self) -> int:
        """Number of samples that wait for a slot."""
        with self._changed:
            return sum(len(job.waiting) for job in self._waiting)

    def rejection(self, request: Request) -> str | None:
        """The reason why the slots cannot hold a client's request; None if they can."""
        vocabulary = self.capabilities.vocabulary
        return rejection(
            request, self.rollouts, vocabulary=vocabulary, max_context=self._max_context
        )

    def submit(self, jobs: Iterable[Job]) -> None:
        """Queues groups; one that needs no generation is delivered at once. Any thread.

        Raises:
          WorkerError: the engine has failed or is closed.
        """
        complete, incomplete = [], []
        for job in jobs:
            (complete if job.complete else incomplete).append(job)
        with self._changed:
            self._raise_if_failed()
            self._waiting += incomplete
            self._changed.notify()
        for job in complete:
            job.deliver(job.samples)

    def close(self) -> None:
        """Ends the thread; waiting and running requests fail. Idempotent; waits at most 10 s."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        atexit.unregister(self.close)
        self._loading.shutdown(wait=False, cancel_futures=True)
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)

    # --- on other threads; what is above, on the event loop

    def _read(self, version: WeightVersion) -> Loaded:
        from rlax_plugin.weights.device_fingerprint import fingerprint

        slots, made_by = self._ready.result(), self._fingerprint or fingerprint
        # What was converted cannot score the canary: the whole version is read again.
        like, held = slots.variables_like(), None if slots.converts else self._swaps.used
        # A file system may take minutes, and no program of several devices runs meanwhile.
        with self._generating() if version.in_memory else nullcontext():
            loaded = read_weights(version, self._store, like, fingerprint=None, held=held)
        with self._generating():
            return laid_out(loaded, slots, made_by, self._discard, self._generating)

    def _scored(self, weights: Arrays, tokens: np.ndarray) -> np.ndarray:
        with self._generating():
            return self._ready.result().logprobs(weights, tokens)

    def _discard(self, arrays: Arrays) -> None:
        with self._changed:
            self._swaps.discard(arrays)
            self._changed.notify()

    def _run(self) -> None:
        scheduler: Scheduler | None = None
        try:
            with self._generating():
                self._slots = slots = self._make_slots()
                if self.config.warm_up:
                    slots.warm_up()
            scheduler = self._scheduler = Scheduler(
                slots,
                arrival_steps=self.config.arrival_steps,
                linger_steps=self.config.linger_steps,
                longest_call=self.config.longest_call(self.rollouts),
                longest_client_call=self.config.interrupt_steps,
                decode=lambda tokens: self.prompt_source().decode(tokens),
                stop_string_steps=self.config.stop_string_steps,
                deterministic=self._deterministic,
            )
            self._ready.set_result(slots)
            while self._turn(slots, scheduler):
                pass
        except Exception as error:
            if not self._closing:  # else it waited for devices that it does not get any more
                log.exception("the rollout engine failed")
            self._end(error, scheduler)
        else:
            self._end(WorkerError("closed"), scheduler)

    def _turn(self, slots: DecodeSlots, scheduler: Scheduler) -> bool:
        """Drops jobs, swaps weights, fills slots, decodes, reports; False once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_work(scheduler), _IDLE_S)
            if self._closing:
                return False
            scheduler.drop([job for job in scheduler.jobs() if job.unwanted])
            self._waiting = [job for job in self._waiting if not job.unwanted]
            self._swaps.forget_cancelled()
            if self._swaps.next is not None:
                self._interrupt(scheduler)
            swap = None if scheduler.active else self._swaps.take()
            # While weights wait, nothing is admitted: running samples finish on the old ones.
            paused = swap is not None or self._swaps.paused
            prefills = [] if paused else scheduler.plan(self._waiting, self.version)
            self._waiting = [job for job in self._waiting if job.waiting]
            more_waits = paused or self._admissible()
        if swap is not None:
            self._active = 0
            with self._generating():
                self._swaps.perform(swap, slots, scheduler.forget_contexts)
            return True
        if not (prefills or scheduler.active):
            self._active = 0
            return True
        with self._generating():
            slots.insert(self._swaps.weights, prefills)
            self._active = scheduler.active
            began_s = time.perf_counter()
            ended = scheduler.advance(self._swaps.weights, more_waits) if scheduler.active else None
            self._decode_s += time.perf_counter() - began_s
        if ended is not None:
            for job in ended:
                job.deliver(job.samples)
            self._active = scheduler.active
            self._report(scheduler)
        return True

    def _interrupt(self, scheduler: Scheduler) -> None:
        """Returns running samples to the front of the queue, unless they finish."""
        if (mode := self.rollouts.on_new_weights) != "finish":
            back = scheduler.interrupt(keep_tokens=mode == "continue")
            self._waiting = list(dict.fromkeys(back + self._waiting))

    def _report(self, scheduler: Scheduler) -> None:
        if (now_s := time.monotonic()) >= self._stream_at_s:
            scheduler.stream()
            self._stream_at_s = now_s + _STREAM_S
        if self.rollouts.on_new_weights != "continue" or now_s < self._report_at_s:
            return
        with self._changed:
            waiting = list(self._waiting)
        for job, samples in scheduler.progress(waiting):
            job.report(samples)
        self._report_at_s = time.monotonic() + self.rollouts.progress_s

    def _has_work(self, scheduler: Scheduler) -> bool:
        if self._closing or self._swaps.next is not None or scheduler.active:
            return True
        may_begin = not self._swaps.paused and self._admissible()
        return may_begin or any(job.unwanted for job in self._waiting)

    def _admissible(self) -> bool:
        """True if a waiting group may be generated with the weights in use."""
        return any(job.min_version <= self.version for job in self._waiting)

    def _end(self, error: Exception, scheduler: Scheduler | None) -> None:
        failure = WorkerError(f"rollout engine: {error}")
        failure.__cause__ = error
        with self._changed:
            self._error = failure
            jobs = list(dict.fromkeys(self._waiting + (scheduler.jobs() if scheduler else [])))
            self._waiting = []
            self._swaps.fail(failure)
        for job in jobs:
            job.fail(failure)
        if not self._ready.done():
            self._ready.set_exception(failure)
        self._active = 0

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error


def _ignore(ended: asyncio.Future[DecodeSlots]) -> None:
    """Retrieves an error, which asyncio would log otherwise; those who wait get it too."""
    if not ended.cancelled():
        ended.exception()
