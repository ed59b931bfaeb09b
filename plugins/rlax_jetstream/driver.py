"""A driver for JetStream's servicer, on top of the same scheduler.

``JetStreamDriver`` replaces JetStream's ``Driver`` in ``LLMOrchestrator`` (tested with
google-jetstream 0.2.2; ``prefill_backlog_size`` is of the later upstream code).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from rlax_jetstream.replies import Replies, RequestError
from rlax_plugin.api import Job, Key, Request, RlaxError, SamplingParams, one_line, stop_strings_of

if TYPE_CHECKING:
    from rlax_jetstream.engine import JetstreamEngine

log = logging.getLogger("rlax.jetstream")

_BACKLOG_FACTOR = 4  # waiting samples per slot from which on requests are turned away
_LONGEST_TOKEN = 256  # characters of a token, of a prompt source that names no tokenizer
_EXCERPT = 300  # characters of a source's error


class JetStreamDriver:
    """Implements the methods of a driver that ``LLMOrchestrator`` calls.

    The proto has neither temperature nor seed: a request is generated with the settings under
    ``rlax.rollouts`` and random seeds. Its messages have the new tokens of all completions, see
    ``Replies``; with ``on_new_weights: discard`` there is one message, with whole completions.
    """

    def __init__(self, engine: JetstreamEngine):
        self._engine = engine
        # A prompt source may take long to load, too long for an event loop. Texts have a thread of
        # their own, so that answers and requests with tokens do not wait for long ones.
        self._encoding = ThreadPoolExecutor(1, thread_name_prefix="rlax-jetstream-encode")
        self._answering = ThreadPoolExecutor(1, thread_name_prefix="rlax-jetstream")
        self._numbers = itertools.count()
        self._lock, self._unprepared = threading.Lock(), 0  # samples the engine does not have yet

    @property
    def live(self) -> bool:
        return self._engine.ready

    def stop(self) -> None:
        for threads in (self._encoding, self._answering):
            threads.shutdown(wait=False, cancel_futures=True)
        self._engine.close()

    def get_total_concurrent_requests(self) -> int:
        return self._engine.rollouts.slots

    def prefill_backlog_size(self) -> int:
        with self._lock:
            return self._engine.backlog + self._unprepared

    @property
    def most_waiting(self) -> int:
        """Maximum number of waiting samples, and so of the samples of one request."""
        return _BACKLOG_FACTOR * self._engine.rollouts.slots

    def place_request_on_prefill_queue(self, request: Any, samples: int = 1) -> None:
        """Takes an ``ActiveRequest``; later errors arrive through its return channel.

        Args:
          samples: number of completions of the request, at most ``most_waiting``.

        Raises:
          queue.Full: too many samples are waiting; the servicer answers RESOURCE_EXHAUSTED.
        """
        with self._lock:
            if self._engine.backlog + self._unprepared + samples > self.most_waiting:
                raise queue.Full
            self._unprepared += samples
        threads = self._encoding if isinstance(request.prefill_content, str) else self._answering
        self._later(threads, request, lambda: self._accept(request, samples))

    def _later(self, threads: ThreadPoolExecutor, request: Any, work: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it is stopped: nobody waits
            threads.submit(self._reporting, request, work)

    def _reporting(self, request: Any, work: Callable[[], None]) -> None:
        try:
            work()
        except RlaxError as error:
            request.return_channel.set_exception(error)
        except Exception as error:
            log.exception("a JetStream request failed")
            request.return_channel.set_exception(error)

    def _accept(self, request: Any, samples: int) -> None:
        job = None
        try:
            if not request.return_channel.cancelled():  # while it waited
                job = self._job(request, samples)
        finally:
            with self._lock:  # at once, so that no sample is counted twice or not at all
                self._unprepared -= samples
                if job is not None:
                    self._engine.submit([job])

    def _job(self, request: Any, samples: int) -> Job:
        rollouts, channel = self._engine.rollouts, request.return_channel
        # A proto3 field that is not set arrives as 0.
        max_tokens = request.max_tokens or rollouts.max_new_tokens
        if not 1 <= max_tokens <= rollouts.max_new_tokens:
            raise RequestError(
                f"max_tokens = {request.max_tokens}: must be from 1 to "
                f"{rollouts.max_new_tokens} (rlax.rollouts.max_new_tokens)"
            )
        content = request.prefill_content
        tokens = self._encode(content) if isinstance(content, str) else content
        source, ends = self._engine.prompt_source(), not rollouts.ignore_stop
        sampling = SamplingParams(
            temperature=rollouts.last_temperature,
            top_k=rollouts.top_k,
            top_p=rollouts.top_p,
            max_new_tokens=max_tokens,
            stop_ids=source.stop_ids if ends else (),
            stop_strings=stop_strings_of(source) if ends else (),
        )
        group = Request(
            key=Key("serve", next(self._numbers)),
            attempt=1,
            context=np.asarray(tokens, np.int32),
            seeds=tuple(secrets.randbits(64) for _ in range(samples)),
            sampling=sampling,
        )
        if why := self._engine.rejection(group):
            raise RequestError(why)

        def fail(error: Exception) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                channel.set_exception(error)

        later = functools.partial(self._later, self._answering, request)
        replies = Replies(request, samples, self._engine.prompt_source, later)
        # Tokens that a change of weights discards cannot be taken back.
        stream = None if rollouts.on_new_weights == "discard" else replies.so_far
        return Job(group, replies.whole, fail, abandoned=channel.cancelled, stream=stream)

    def _encode(self, text: str) -> list[int]:
        source = self._engine.prompt_source()
        longest = source.tokenizer.longest_token if source.tokenizer else _LONGEST_TOKEN
        most = self._engine.rollouts.max_prompt_tokens
        if len(text) > most * longest:
            raise RequestError(
                f"text_content has {len(text)} characters: must have at most {most * longest}, as "
                f"rlax.rollouts.max_prompt_tokens is {most} and no token has more than {longest}"
            )
        try:
            return list(source.encode(text))
        except ValueError as error:
            reason = one_line(str(error), _EXCERPT)  # it may repeat the text
            raise RequestError(f"text_content cannot be encoded: {reason}") from error


class DriverOfOne:
    """A driver for one call of the stock servicer, which does not pass on a number of samples.

    Args:
      samples: number of completions of the call's request.
    """

    def __init__(self, driver: JetStreamDriver, samples: int):
        self._driver, self._samples = driver, samples

    def prefill_backlog_size(self) -> int:
        return self._driver.prefill_backlog_size()

    def place_request_on_prefill_queue(self, request: Any) -> None:
        """See ``JetStreamDriver``."""
        self._driver.place_request_on_prefill_queue(request, self._samples)
