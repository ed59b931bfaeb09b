"""Splits replies and requests into messages of at most ``PIECE_BYTES``, and collects them again.

A message with ``more`` is continued by the next one: that one's first sample continues the last
sample of this one. So joining the messages needs no lookup, and data that fits into one message is
not split at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence

import numpy as np

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import Key, Request, Sampled, SideSpec
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.rpc.transport.message_sizes import (
    GROUP_BYTES,
    ID_BYTES,
    PIECE_BYTES,
    SAMPLE_BYTES,
    SEED_BYTES,
    TOKEN_BYTES,
    channel_bytes,
    group_bytes,
)
from rlax_plugin.rpc.transport.wire import (
    finish_to_proto,
    key_to_proto,
    reply_to_proto,
    request_to_proto,
    runs_of,
)

_FIXED_BYTES = 8  # of each token: its id and its log-prob
_RUN_BYTES = 10  # of a run of versions, at most
_LEAST_BYTES = 1024  # that a message counts as: protobuf takes memory for the smallest one, too


def reply_messages(
    key: Key,
    samples: Sequence[Sampled],
    known: Sequence[int] | None = None,
    most_bytes: int = PIECE_BYTES,
) -> Iterator[pb.Reply]:
    """A reply, in one message if it fits.

    Args:
      known: number of each sample's first tokens that the receiver already has; None: 0.
      most_bytes: maximum size of a message.
    """
    begins = [0] * len(samples) if known is None else known
    sizes = map(_most_bytes, samples, begins)
    if GROUP_BYTES + sum(sizes) <= most_bytes:
        yield reply_to_proto(key, samples, known)
        return
    portions = _portions(zip(samples, begins, strict=True), most_bytes - SAMPLE_BYTES)
    for portion, more in _with_more(portions):
        yield pb.Reply(key=key_to_proto(key), samples=portion, more=more)


def request_messages(
    requests: Iterable[Request], most_bytes: int = PIECE_BYTES
) -> Iterator[pb.GenerateRequest]:
    """Requests of one call, in order, with as many in a message as fit."""
    together: list[pb.Request] = []
    left = most_bytes
    for request in requests:
        size = _head_bytes(request) + len(request.context) * ID_BYTES
        size += sum(_most_bytes(sampled) for sampled in request.resume)
        if together and size > left:
            yield pb.GenerateRequest(requests=together)
            together, left = [], most_bytes
        if size <= left:
            together.append(request_to_proto(request))
            left -= size
            continue
        for part, more in _with_more(_parts(request, most_bytes)):
            part.more = more
            yield pb.GenerateRequest(requests=[part])
    if together:
        yield pb.GenerateRequest(requests=together)


def _head_bytes(request: Request) -> int:
    """Maximum bytes of a request, without its context and the samples that it resumes."""
    return GROUP_BYTES + len(request.seeds) * SEED_BYTES


def _parts(request: Request, most_bytes: int) -> Iterator[pb.Request]:
    """Splits a request that is too large for one message: its context, then its samples."""
    step = max(1, (most_bytes - _head_bytes(request)) // ID_BYTES)
    first = dataclasses.replace(request, context=request.context[:step], resume=())
    part = request_to_proto(first)
    rest = {"key": key_to_proto(request.key), "attempt": request.attempt}
    for begin in range(step, len(request.context), step):
        yield part
        context = np.ascontiguousarray(request.context[begin : begin + step], "<i4").tobytes()
        part = pb.Request(**rest, context=context)
    if request.resume:
        yield part
        resume = zip(request.resume, [0] * len(request.resume), strict=True)
        for portion in _portions(resume, most_bytes - 2 * SAMPLE_BYTES):
            yield pb.Request(**rest, resume=portion)
    else:
        yield part


def _with_more[T](items: Iterator[T]) -> Iterator[tuple[T, bool]]:
    """Yields each item, with True if another one follows."""
    item = next(items)
    for following in items:
        yield item, True
        item = following
    yield item, False


def _most_bytes(sampled: Sampled, begins_at: int = 0) -> int:
    """Maximum bytes of a sample."""
    size = SAMPLE_BYTES + (len(sampled.tokens) - begins_at) * TOKEN_BYTES
    for name, array in sampled.side.items():
        size += channel_bytes(name) + array.nbytes
    return size


def _portions(samples: Iterable[tuple[Sampled, int]], most_bytes: int) -> Iterator[list[pb.Sample]]:
    """Samples for one message after another; each message but the first continues a sample.

    Args:
      samples: each with the number of its first tokens that the receiver already has.
    """
    portion: list[pb.Sample] = []
    left = most_bytes
    rest: _Rest | None = None
    for sampled, begins_at in samples:
        if rest is not None and left < SAMPLE_BYTES:
            yield portion
            piece, taken = rest.piece(most_bytes)  # without tokens: it only says which one ends
            portion, left = [piece], most_bytes - taken
        rest = _Rest(sampled, begins_at)
        while True:
            piece, taken = rest.piece(left)
            portion.append(piece)
            left -= taken
            if rest.empty:
                break
            yield portion
            portion, left = [], most_bytes
    yield portion


class _Rest:
    """The rest of a sample that is still to be sent; its arrays are only copied in pieces."""

    def __init__(self, sampled: Sampled, begins_at: int):
        self._sampled, self._at = sampled, begins_at
        self._side: dict[str, np.ndarray] = {}
        for name, array in sampled.side.items():
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            self._side[name] = little.reshape(-1).view(np.uint8)

    @property
    def empty(self) -> bool:
        return self._at == len(self._sampled.tokens) and not self._side

    def piece(self, most_bytes: int) -> tuple[pb.Sample, int]:
        """The next piece, and its maximum bytes including ``SAMPLE_BYTES``."""
        sampled, begin = self._sampled, self._at
        left = most_bytes - SAMPLE_BYTES
        end = self._at = begin + self._tokens(left)
        runs = runs_of(sampled.versions[begin:end])
        left -= (end - begin) * _FIXED_BYTES + len(runs) // 2 * _RUN_BYTES
        side: dict[str, bytes] = {}
        if end == len(sampled.tokens):
            for name, numbers in list(self._side.items()):
                count = left - channel_bytes(name)
                if count < min(len(numbers), 1):
                    break
                side[name] = numbers[:count].tobytes()
                self._side[name] = numbers[count:]
                left -= channel_bytes(name) + len(side[name])
                if not len(self._side[name]):
                    del self._side[name]
        piece = pb.Sample(
            seed=sampled.seed,
            tokens=np.ascontiguousarray(sampled.tokens[begin:end], "<i4").tobytes(),
            logprobs=np.ascontiguousarray(sampled.logprobs[begin:end], "<f4").tobytes(),
            versions=runs,
            finish=finish_to_proto(sampled.finish),
            begins_at=begin,
            side=side,
        )
        return piece, most_bytes - left

    def _tokens(self, most_bytes: int) -> int:
        """The number of the next tokens that fit, together with the runs of their versions."""
        fit = max(0, most_bytes // _FIXED_BYTES)
        versions = self._sampled.versions[self._at : self._at + fit]
        runs = 1 + int(np.count_nonzero(versions[1:] != versions[:-1]))
        fit = max((most_bytes - runs * _RUN_BYTES) // _FIXED_BYTES, most_bytes // TOKEN_BYTES, 0)
        return min(fit, len(versions))


class Outgoing:
    """Messages of a call's requests, made as they are sent.

    Attributes:
      error: the error that prevented a message. gRPC then only cancels the call, and does not
        report the reason.
    """

    def __init__(self, requests: Iterable[Request]):
        self._requests = list(requests)
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pb.GenerateRequest]:
        try:
            yield from request_messages(self._requests)
        except Exception as error:
            self.error = error
            raise


class Arriving:
    """The incomplete reply of a call. Its messages arrive without others in between."""

    def __init__(self) -> None:
        self._key: Key | None = None
        self._messages: list[pb.Reply] = []
        self._bytes = 0
        self._place = 0  # among the seeds, of the sample that the next message continues

    def note(self, key: Key, reply: pb.Reply) -> None:
        """Called with every message, before anything else is done with it.

        Raises:
          ValueError: it interrupts another reply.
        """
        if self._key is None and not reply.more:
            return
        if self._key not in (key, None):
            raise ValueError(f"a reply to {key} in the midst of that to {self._key}")
        if reply.given_up:
            raise ValueError(f"a part of a reply to {key} that says that there is none")
        self._key = key if reply.more else None

    def take(
        self, reply: pb.Reply, request: Request, worker: str, side: Mapping[str, SideSpec]
    ) -> list[pb.Reply] | None:
        """Stores a message, unless it is the last one of its reply.

        Args:
          worker: its name, for messages.
          side: the worker's side channels.

        Returns:
          The messages before the last one; None if the last one has not arrived yet.

        Raises:
          WorkerError: the messages together have other samples than were requested, or more than
            can be generated for the request.
        """
        if not reply.more:
            messages = self._messages
            self._messages, self._bytes, self._place = [], 0, 0
            return messages
        seeds = request.seeds[self._place : self._place + len(reply.samples)]
        if len(seeds) != len(reply.samples) or seeds != tuple(s.seed for s in reply.samples):
            problem = "was answered with samples that were not requested"
            raise WorkerError(f"{worker}: {request.key} {problem}")
        count, tokens = len(request.seeds), request.sampling.max_new_tokens
        most = group_bytes(count, tokens, len(request.context), side)
        self._bytes += max(reply.ByteSize(), _LEAST_BYTES)
        if self._bytes > most:
            problem = f"was answered with more than {most:,} bytes, the most that it can take"
            raise WorkerError(f"{worker}: {request.key} {problem}")
        self._messages.append(reply)
        self._place += max(0, len(seeds) - 1)
        return None


async def read_requests(
    messages: AsyncIterator[pb.GenerateRequest],
    *,
    most_requests: int,
    most_bytes: int,
    within_s: float,
) -> list[list[pb.Request]]:
    """Requests of a call, each as the messages that it arrived in: one, unless it was split.

    Args:
      within_s: maximum wait for the end of the call's messages, and as long again for each
        ``PIECE_BYTES`` of them.

    Raises:
      ValueError: there are more or larger requests than one call may send, or they are garbled.
      TimeoutError: they did not arrive in time.
    """
    found: list[list[pb.Request]] = []
    first: pb.GenerateRequest | None = None
    taken = 0
    more = False
    async with asyncio.timeout(within_s) as limit:
        begun_s = asyncio.get_running_loop().time()
        async for message in messages:
            if first is None:
                first = message  # to measure it costs a copy: a message alone is never too large
            else:
                taken = (taken or _counted(first)) + _counted(message)
                limit.reschedule(begun_s + within_s * (1 + taken / PIECE_BYTES))
            if taken > most_bytes:
                raise ValueError(f"a call of more than {most_bytes:,} bytes")
            if len(found) + len(message.requests) - more > most_requests:
                raise ValueError(f"a call of more than {most_requests:,} requests")
            for request in message.requests:
                if not more:
                    found.append([request])
                else:
                    _check_continues(found[-1][0], request)
                    found[-1].append(request)
                more = request.more
    if more:
        raise ValueError("a call whose last request did not arrive whole")
    return found


async def discard(messages: AsyncIterator[pb.GenerateRequest], within_s: float) -> None:
    """Reads the rest of a call's requests, and discards them."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            async for _ in messages:
                pass


def _counted(message: pb.GenerateRequest) -> int:
    return max(message.ByteSize(), _LEAST_BYTES)


def _check_continues(first: pb.Request, part: pb.Request) -> None:
    if (part.key, part.attempt) != (first.key, first.attempt):
        raise ValueError("a request in the midst of another one")
    if len(part.resume) > len(first.seeds):
        raise ValueError("a request that resumes other samples than it asks for")
