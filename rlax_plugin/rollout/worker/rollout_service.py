"""The RL service of a worker: receives requests, and streams the samples generated for each."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc
import numpy as np

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.tokens.defects import defect
from rlax_plugin.base.types import EMPTY, Attempt, Key, Request, Sampled, SideSpec
from rlax_plugin.config import INT32_MAX, RlaxSection
from rlax_plugin.ports.abilities import has
from rlax_plugin.ports.capabilities import Capabilities
from rlax_plugin.ports.protocols import RolloutEngine
from rlax_plugin.rollout.batching.jobs import rejection
from rlax_plugin.rollout.fleet.links import CallError
from rlax_plugin.rollout.worker.progress import ProgressReport
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc import rlax_pb2_grpc as rpc
from rlax_plugin.rpc.transport.message_sizes import group_bytes
from rlax_plugin.rpc.transport.pieces import discard, read_requests, reply_messages
from rlax_plugin.rpc.transport.wire import key_from_proto, key_to_proto, request_from_proto

_STATUS = {
    "rejected": grpc.StatusCode.INVALID_ARGUMENT,
    "failed": grpc.StatusCode.INTERNAL,
    "gone": grpc.StatusCode.UNAVAILABLE,
}


def accepted(
    message: pb.Request,
    section: RlaxSection,
    vocabulary: int = 0,
    side: Mapping[str, SideSpec] = EMPTY,
    rest: Sequence[pb.Request] = (),
) -> Request:
    """Returns the request of a message, which may reach the engine.

    Args:
      rest: further messages that continue this one.
      vocabulary: token ids are below it; 0: the engine does not report it.
      side: the engine's side channels.

    Raises:
      ValueError: it may not; says why, and names it as the controller does.
    """
    try:
        request = request_from_proto(message, side, rest)
    except ValueError as error:  # such as bytes that are no whole number of elements
        raise ValueError(f"{_name(message.key)}: it is garbled: {error}") from error
    check(request, section, vocabulary, side)
    return request


def check(
    request: Request, section: RlaxSection, vocabulary: int, side: Mapping[str, SideSpec]
) -> None:
    """Raises a ValueError if a request may not reach the engine; see ``accepted``."""
    why = rejection(
        request,
        section.rollouts,
        vocabulary=vocabulary,
        max_context=section.max_context_tokens,
        most_samples=_most_samples(section),
    )
    if why is None:
        length = len(request.context)
        why = defect(request.resume, request.sampling, vocabulary, context_length=length, side=side)
        why = why and f"resume {why}"
    if why is not None:
        raise ValueError(f"{request.key}: {why}")


def _most_samples(section: RlaxSection) -> int:
    """Maximum number of samples of one request."""
    limits = section.rollouts
    return max(limits.slots, limits.group_size, section.evaluation.most_samples)


def _limits(section: RlaxSection, has: Capabilities) -> dict[str, int]:
    """Limits of one call: a controller assigns twice the slots, or one group."""
    samples = 2 * max(section.rollouts.slots, has.slots) + _most_samples(section)
    new, context = section.rollouts.max_new_tokens, section.max_context_tokens
    return {
        "most_requests": samples,
        "most_bytes": samples * group_bytes(1, new, context, has.side),
    }


def _name(key: pb.Key) -> str:
    try:
        return str(key_from_proto(key))
    except ValueError:
        return f"group {key.group}"


class Said(NamedTuple):
    """A report of a request's samples, or its answer.

    Attributes:
      samples: whole ones; none of a request that was given up.
      given_up: tokens generated for each sample of such a request; None: it was not given up.
    """

    key: Key
    samples: Sequence[Sampled] = ()
    given_up: Sequence[int] | None = None


@dataclass(eq=False, slots=True)
class _Call:
    """An open call.

    Attributes:
      unanswered: requests that are not finished.
      caller: see ``RolloutService.drop``; dropped: True once it was called.
      owed: requests that must report once more.
      delivered: replies to be sent, in order; None marks the end.
      given_up: requests that get no samples.
    """

    unanswered: dict[Key, Request]
    caller: object = None
    dropped: bool = False
    owed: set[Key] = field(default_factory=set)
    given_up: set[Key] = field(default_factory=set)
    delivered: asyncio.Queue[Said | None] = field(default_factory=asyncio.Queue)


def _new(
    known: dict[Key, Sequence[Sampled]], key: Key, samples: Sequence[Sampled]
) -> Iterator[pb.Reply]:
    """Messages with the tokens that are new to the caller.

    Args:
      known: samples that the caller already has: those sent, or those to be resumed.
    """
    before, known[key] = known.get(key, ()), samples
    if len(before) != len(samples):  # nothing is, or the engine errs and the caller says so
        return reply_messages(key, samples)
    lengths = [_continued(old, new) for old, new in zip(before, samples, strict=True)]
    return reply_messages(key, samples, lengths)


def _continued(old: Sampled, new: Sampled) -> int:
    """Number of tokens of ``old``, if ``new`` continues them; 0 if it started over."""
    length = len(old.tokens)
    same = all(
        np.array_equal(getattr(new, name)[:length], getattr(old, name))
        for name in ("tokens", "logprobs", "versions")
    )
    return length if same else 0


class RolloutService(rpc.RolloutServicer):
    """Serves a ``RolloutEngine`` over gRPC. ``draining`` rejects new calls.

    Status codes show the caller's next action: INVALID_ARGUMENT, the request is wrong everywhere;
    INTERNAL, this engine failed; UNAVAILABLE, ask another worker, or send it faster.

    Args:
      section: its limits are enforced here, so that no request can harm the engine.
      on_wanted: called with the newest version that requests of a call need.
      has_weights: returns True if there are verified weights of the present trainer process.
      sends_unfinished: False to send samples over gRPC only when their request is complete.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        section: RlaxSection,
        on_wanted: Callable[[int], None] = lambda version: None,
        has_weights: Callable[[], bool] = lambda: True,
        sends_unfinished: bool = True,
    ):
        self._engine, self._section, self._on_wanted = engine, section, on_wanted
        self._has_weights, self._sends_unfinished = has_weights, sends_unfinished
        self.draining = False
        self._calls: dict[_Call, asyncio.Future[None]] = {}  # and what generates it
        self._progress, self._delivered = ProgressReport(engine), 0
        self._settled = asyncio.Event()  # no request owes a report
        self._leaving = ""  # why the calls end early
        self._end = asyncio.Event()

    async def Generate(
        self,
        request_iterator: AsyncIterator[pb.GenerateRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[pb.Reply]:
        requests = await self._requests(request_iterator, context)
        known: dict[Key, Sequence[Sampled]] = {r.key: r.resume for r in requests}
        try:
            async with aclosing(self.answers(requests)) as said:
                async for key, samples, given_up in said:
                    if given_up is not None:
                        yield pb.Reply(key=key_to_proto(key), given_up=True, tokens=given_up)
                        continue
                    if not self._sends_unfinished and any(s.finish is None for s in samples):
                        continue
                    for message in _new(known, key, samples):
                        yield message
        except CallError as error:
            await context.abort(_STATUS[error.kind], str(error))

    async def answers(
        self, requests: Sequence[Request], caller: object = None
    ) -> AsyncGenerator[Said]:
        """Generates; yields what is said of the requests, until all are answered.

        Closing the generator ends the generation.

        Args:
          caller: see ``drop``.

        Raises:
          CallError: this worker takes no requests, or cannot answer them all.
        """
        if self.draining:
            raise CallError("this worker is draining", "gone")
        if not self._has_weights():
            raise CallError("this worker holds no weights yet", "gone")
        self._on_wanted(max((r.needs_version for r in requests), default=0))
        call = _Call({r.key: r for r in requests}, caller)
        # When the caller gives up, this coroutine is cancelled, and with it the generation.
        generation = self._calls[call] = asyncio.ensure_future(
            self._engine.generate(requests, functools.partial(self._deliver, call))
        )
        generation.add_done_callback(lambda _: call.delivered.put_nowait(None))
        try:
            while (said := await call.delivered.get()) is not None:
                yield said
            if generation.cancelled():
                if not call.dropped:
                    await self._end.wait()
                raise CallError(self._leaving or "the call was ended", "gone")
            generation.result()  # raises what ended it early
        except WorkerError as error:
            raise CallError(str(error), "failed") from error
        finally:
            generation.cancel()
            del self._calls[call]
            self._settle()

    async def _requests(
        self, messages: AsyncIterator[pb.GenerateRequest], context: grpc.aio.ServicerContext
    ) -> list[Request]:
        """Reads a call's requests to their end; aborts the call if they cannot be accepted."""
        has, rpc_s = self._engine.capabilities, self._section.deadlines.rpc_s
        try:
            limits = _limits(self._section, has)
            asked = await read_requests(messages, within_s=rpc_s, **limits)
        except ValueError as error:
            # gRPC tells a caller that is still sending no more than that the call broke.
            await discard(messages, rpc_s)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except TimeoutError:
            what = f"the call's requests did not arrive whole, rlax.deadlines.rpc_s is {rpc_s:g}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, what)
        try:
            requests = [
                accepted(first, self._section, has.vocabulary, has.side, rest)
                for first, *rest in asked
            ]
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if len({request.key for request in requests}) < len(requests):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a request came twice in a call")
        return requests

    async def GiveUp(
        self, request: pb.GiveUpRequest, context: grpc.aio.ServicerContext
    ) -> pb.GiveUpReply:
        try:
            unwanted = {(key_from_proto(one.key), one.attempt) for one in request.unwanted}
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not -1 <= request.oldest <= INT32_MAX:
            reason = f"oldest version {request.oldest}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        self.give_up(unwanted, request.oldest)
        return pb.GiveUpReply()

    def give_up(self, unwanted: Collection[Attempt], oldest: int) -> None:
        """Ends requests, and those begun with weights older than ``oldest``, without samples."""
        if has(self._engine, RolloutEngine, "give_up"):
            self._on_wanted(oldest)
        found = self._engine.give_up(unwanted, oldest)
        for call in self._calls:
            for key, asked in list(call.unanswered.items()):
                if (tokens := found.get((key, asked.attempt))) is None:
                    continue
                # Before the end, which follows the last one's.
                call.delivered.put_nowait(Said(key, given_up=tokens))
                call.given_up.add(key)
                call.owed.discard(key)
                del call.unanswered[key]
        self._settle()

    def _deliver(self, call: _Call, key: Key, samples: Sequence[Sampled]) -> None:
        if key in call.given_up:
            return
        self._delivered += 1
        call.delivered.put_nowait(Said(key, samples))
        call.owed.discard(key)
        if all(s.finish is not None for s in samples):
            call.unanswered.pop(key, None)
        self._settle()

    @property
    def generating(self) -> bool:
        """True if calls are open."""
        return bool(self._calls)

    def progress(self, health: Mapping[str, float], loading: bool) -> list[pb.Progress]:
        """The progress of the open requests, for the next heartbeat; see ``ProgressReport``."""
        requests = (r for call in self._calls for r in call.unanswered.values())
        return self._progress.take(requests, health, delivered=self._delivered, loading=loading)

    def _settle(self) -> None:
        if not any(call.owed for call in self._calls):
            self._settled.set()

    async def hand_over(self, within_s: float) -> None:
        """Waits until each open request has reported once more, then ends the calls.

        Other workers continue from there. ``draining`` must be set, so that no calls are added.

        Args:
          within_s: longest wait; a request that is late is resumed from an earlier report.
        """
        self._settled.clear()
        for call in self._calls:
            call.owed = set(call.unanswered)
        self._settle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), within_s)
        self.stop_generating("this worker is leaving")
        self.end_calls()

    def stop_generating(self, why: str) -> None:
        """Stops generating and rejects calls; open ones stay silent until ``end_calls``."""
        self.draining, self._leaving = True, why
        for generation in self._calls.values():
            generation.cancel()

    def drop(self, caller: object) -> None:
        """Ends the calls of a caller in this process, which has let this worker go."""
        for call, generation in self._calls.items():
            if call.caller is caller:
                call.dropped = True
                generation.cancel()

    def end_calls(self) -> None:
        """Ends the open calls, so their callers use other workers."""
        self._end.set()

    async def Health(
        self, request: pb.HealthRequest, context: grpc.aio.ServicerContext
    ) -> pb.HealthReply:
        try:
            figures = self._engine.health()
        except WorkerError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return pb.HealthReply(version=self._engine.version, figures=figures, draining=self.draining)
