"""Converts records to protocol messages and back. Arrays travel as little-endian bytes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from rlax_plugin.base.errors import WorkerError
from rlax_plugin.base.types import (
    EMPTY,
    Finish,
    Key,
    Purpose,
    Request,
    Sampled,
    SamplingParams,
    SideSpec,
)
from rlax_plugin.rpc import rlax_pb2 as pb

_I32, _F32 = np.dtype("<i4"), np.dtype("<f4")
_PURPOSES: tuple[Purpose, ...] = ("train", "evaluate", "serve")
_FINISHES: tuple[Finish | None, ...] = (None, "stop", "length")


def _bytes(array: np.ndarray, dtype: np.dtype) -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def key_to_proto(key: Key) -> pb.Key:
    return pb.Key(
        purpose=cast(pb.Purpose, _PURPOSES.index(key.purpose)),
        group=key.group,
        sample=key.sample,
        trajectory=key.trajectory,
        turn=key.turn,
    )


def key_from_proto(key: pb.Key) -> Key:
    """Converts a key.

    Raises:
      ValueError: the purpose does not exist.
    """
    if not 0 <= key.purpose < len(_PURPOSES):  # any int32 may arrive
        raise ValueError(f"purpose {key.purpose} does not exist")
    sample = key.sample if key.HasField("sample") else None
    return Key(_PURPOSES[key.purpose], key.group, sample, key.trajectory, key.turn)


def finish_to_proto(finish: Finish | None) -> pb.Finish:
    return cast(pb.Finish, _FINISHES.index(finish))


def runs_of(versions: np.ndarray) -> list[int]:
    """Runs of equal versions: each version, and the number of consecutive tokens with it."""
    if not len(versions):
        return []
    if (versions == versions[0]).all():
        return [int(versions[0]), len(versions)]
    starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
    counts = np.diff(starts, append=len(versions))
    return np.stack([versions[starts], counts], axis=1).ravel().tolist()


def _versions(runs: Sequence[int], length: int) -> np.ndarray:
    if len(runs) == 2 and runs[1] == length:
        return np.full(length, runs[0], np.int32)
    if len(runs) > 2 * length:
        raise ValueError(f"{len(runs) // 2} runs of versions for {length} tokens")
    pairs = np.array(runs, np.int64).reshape(-1, 2)
    if (pairs[:, 1] < 1).any() or int(pairs[:, 1].sum()) != length:
        raise ValueError(f"versions of {int(pairs[:, 1].sum())} tokens for {length}")
    return np.repeat(pairs[:, 0], pairs[:, 1]).astype(np.int32)


def _sample_to_proto(sampled: Sampled, begins_at: int = 0) -> pb.Sample:
    return pb.Sample(
        seed=sampled.seed,
        tokens=_bytes(sampled.tokens[begins_at:], _I32),
        logprobs=_bytes(sampled.logprobs[begins_at:], _F32),
        versions=runs_of(sampled.versions[begins_at:]),
        finish=finish_to_proto(sampled.finish),
        begins_at=begins_at,
        side={name: _bytes(a, a.dtype.newbyteorder("<")) for name, a in sampled.side.items()},
    )


Pieces = Sequence[pb.Sample]
"""One sample as it has arrived, whole or in pieces."""


def _by_sample(portions: Sequence[Sequence[pb.Sample]]) -> Sequence[Pieces]:
    """Samples of several messages: the first of each continues the last one of the message before.

    Raises:
      ValueError: a message has no samples.
    """
    if len(portions) == 1:
        return [(piece,) for piece in portions[0]]
    found = [[piece] for piece in portions[0]]
    for portion in portions[1:]:
        if not portion or not found:
            raise ValueError("a part without samples")
        found[-1].append(portion[0])
        found += [[piece] for piece in portion[1:]]
    return found


def _joined(pieces: Pieces) -> tuple[bytes, bytes, Sequence[int], Mapping[str, bytes]]:
    """Tokens, log-probs, runs of versions and side channels of a sample.

    Raises:
      ValueError: the pieces do not follow each other.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first.tokens, first.logprobs, first.versions, first.side
    tokens, runs, end = [], [], first.begins_at
    side: dict[str, list[bytes]] = {}
    for piece in pieces:
        if (piece.seed, piece.finish) != (first.seed, first.finish):
            raise ValueError("pieces of different samples")
        if piece.begins_at != end:
            raise ValueError(f"a piece from token {piece.begins_at} on, expected {end}")
        tokens.append(piece.tokens)
        end += len(tokens[-1]) // _I32.itemsize
        runs += piece.versions
        for name, data in piece.side.items():
            side.setdefault(name, []).append(data)
    logprobs = b"".join(piece.logprobs for piece in pieces)
    return b"".join(tokens), logprobs, runs, {name: b"".join(some) for name, some in side.items()}


class Told(NamedTuple):
    """A sample in a message: its tokens from ``begins_at`` on, and its whole side channels."""

    begins_at: int
    sampled: Sampled


def _told_from_proto(
    pieces: Pieces, workers: tuple[str, ...], declared: Mapping[str, SideSpec]
) -> Told:
    """One sample from its pieces.

    Raises:
      ValueError: it is garbled.
    """
    first = pieces[0]
    token_bytes, logprob_bytes, runs, side_bytes = _joined(pieces)
    tokens, logprobs = np.frombuffer(token_bytes, _I32), np.frombuffer(logprob_bytes, _F32)
    versions = _versions(runs, len(tokens))
    if not 0 <= first.finish < len(_FINISHES):
        raise ValueError(f"finish {first.finish} does not exist")
    side: Mapping[str, np.ndarray] = EMPTY
    if side_bytes:
        side = {name: _side_array(name, data, declared) for name, data in side_bytes.items()}
    finish = _FINISHES[first.finish]
    sampled = Sampled(first.seed, tokens, logprobs, versions, finish, workers, side)
    return Told(first.begins_at, sampled)


def _continued(before: Sampled | None, told: Told) -> Sampled:
    """A whole sample, of which the receiver has the first tokens.

    Raises:
      ValueError: it does not have them.
    """
    begins_at, s = told
    if not begins_at:
        return s
    if before is None or not 0 < begins_at <= len(before.tokens):
        raise ValueError(f"tokens from {begins_at} on, but those before were not sent")
    return dataclasses.replace(
        s,
        tokens=np.concatenate([before.tokens[:begins_at], s.tokens]),
        logprobs=np.concatenate([before.logprobs[:begins_at], s.logprobs]),
        versions=np.concatenate([before.versions[:begins_at], s.versions]),
    )


def _side_array(name: str, data: bytes, declared: Mapping[str, SideSpec]) -> np.ndarray:
    if (spec := declared.get(name)) is None:
        raise ValueError(f"side channel {name!r}, which was not declared")
    flat = np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<"))
    return flat.reshape(-1, *spec.trailing)


def request_to_proto(request: Request) -> pb.Request:
    s = request.sampling
    return pb.Request(
        key=key_to_proto(request.key),
        attempt=request.attempt,
        context=_bytes(request.context, _I32),
        seeds=request.seeds,
        sampling=pb.Sampling(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            max_new_tokens=s.max_new_tokens,
            stop_ids=s.stop_ids,
            stop_strings=s.stop_strings,
        ),
        min_version=request.min_version,
        resume=[_sample_to_proto(sampled) for sampled in request.resume],
        session=request.session,
    )


def request_from_proto(
    message: pb.Request,
    declared: Mapping[str, SideSpec] = EMPTY,
    rest: Sequence[pb.Request] = (),
) -> Request:
    """The request, without the fields that only the controller needs.

    Args:
      declared: the side channels of the worker that receives it.
      rest: further messages that continue this one.

    Raises:
      ValueError: it is garbled.
    """
    s, context = message.sampling, message.context
    if rest:
        context = b"".join([context, *(part.context for part in rest)])
    parts = [part.resume for part in (message, *rest) if part.resume]
    resume = _by_sample(parts) if parts else ()
    return Request(
        key=key_from_proto(message.key),
        attempt=message.attempt,
        context=np.frombuffer(context, _I32),
        seeds=tuple(message.seeds),
        sampling=SamplingParams(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            max_new_tokens=s.max_new_tokens,
            stop_ids=tuple(s.stop_ids),
            stop_strings=tuple(s.stop_strings),
        ),
        min_version=message.min_version,
        resume=tuple(_continued(None, _told_from_proto(one, (), declared)) for one in resume),
        session=message.session,
    )


def reply_to_proto(
    key: Key, samples: Iterable[Sampled], known: Sequence[int] | None = None
) -> pb.Reply:
    """A reply; each sample without its first ``known`` tokens, which the receiver already has."""
    begins = itertools.repeat(0) if known is None else known
    messages = [_sample_to_proto(s, begin) for s, begin in zip(samples, begins, strict=False)]
    return pb.Reply(key=key_to_proto(key), samples=messages)


def told_by_reply(
    reply: pb.Reply,
    request: Request,
    worker: str,
    *,
    workers: Sequence[tuple[str, ...]],
    declared: Mapping[str, SideSpec] = EMPTY,
    earlier: Sequence[pb.Reply] = (),
) -> list[Told]:
    """Returns the content of one reply for each sample of a request.

    Args:
      worker: its name, for messages.
      workers: for each sample, the workers that have generated it.
      declared: the worker's side channels.
      earlier: the messages of the reply before this one, which is its last.

    Raises:
      WorkerError: it is garbled, or has samples that were not requested.
    """
    try:
        portions = [*(message.samples for message in earlier), reply.samples]
        problem = f"{worker}: {request.key} was answered with samples that were not requested"
        # One message may hold 8 million empty ones: they are counted before any is looked at.
        if sum(map(len, portions)) > len(request.seeds) + len(earlier):
            raise WorkerError(problem)
        found = _by_sample(portions)
        if tuple(pieces[0].seed for pieces in found) != request.seeds:
            raise WorkerError(problem)
        return [
            _told_from_proto(pieces, names, declared)
            for pieces, names in zip(found, workers, strict=False)
        ]
    except ValueError as error:  # such as bytes that are no whole number of elements
        raise WorkerError(f"{worker}: {request.key} is garbled: {error}") from error


def continued(
    before: Sequence[Sampled], told: Sequence[Told], request: Request, worker: str
) -> tuple[Sampled, ...]:
    """Whole samples; ``rollout/fleet/replies.py`` checks their contents afterwards.

    Args:
      before: samples of this request that the worker has sent before, or was given to continue.

    Raises:
      WorkerError: one continues another sample than that.
    """
    try:
        known = before or itertools.repeat(None)
        return tuple(_continued(one, news) for one, news in zip(known, told, strict=False))
    except ValueError as error:
        raise WorkerError(f"{worker}: {request.key} is garbled: {error}") from error
