"""Records to protocol messages and back. Arrays travel as little-endian bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast, get_args

import grpc
import numpy as np

from rlax_plugin.errors import WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import FinishReason, GroupRequest, Rollout, SamplingParams

# A group of long completions may exceed gRPC's default of 4 MiB; the bound is still a bound.
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    # Reconnect soon after a refusal: a restarted worker is back within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *CHANNEL_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)

_I32, _F32 = np.dtype("<i4"), np.dtype("<f4")


def _bytes(array: np.ndarray, dtype: np.dtype) -> bytes:
    return np.ascontiguousarray(array, dtype=dtype).tobytes()


def _sample_to_proto(rollout: Rollout) -> pb.Sample:
    return pb.Sample(
        seed=rollout.seed,
        tokens=_bytes(rollout.tokens, _I32),
        logprob_full=_bytes(rollout.logprob_full, _F32),
        logprob_sampled=_bytes(rollout.logprob_sampled, _F32),
        versions=_bytes(rollout.versions, _I32),
        finish_reason=rollout.finish_reason,
    )


def _sample_from_proto(sample: pb.Sample, group_id: int, index: int, worker: str = "") -> Rollout:
    return Rollout(
        group_id=group_id,
        index=index,
        seed=sample.seed,
        tokens=np.frombuffer(sample.tokens, _I32),
        logprob_full=np.frombuffer(sample.logprob_full, _F32),
        logprob_sampled=np.frombuffer(sample.logprob_sampled, _F32),
        versions=np.frombuffer(sample.versions, _I32),
        finish_reason=cast(FinishReason, sample.finish_reason),
        worker=worker,
    )


def request_to_proto(request: GroupRequest) -> pb.GroupSpec:
    s = request.sampling
    return pb.GroupSpec(
        group_id=request.group_id,
        attempt=request.attempt,
        prompt_tokens=_bytes(request.prompt_tokens, _I32),
        seeds=request.seeds,
        sampling=pb.Sampling(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            max_new_tokens=s.max_new_tokens,
            stop_ids=s.stop_ids,
        ),
        min_version=request.min_version,
        resume=[_sample_to_proto(rollout) for rollout in request.resume],
    )


def request_from_proto(spec: pb.GroupSpec) -> GroupRequest:
    s = spec.sampling
    return GroupRequest(
        group_id=spec.group_id,
        attempt=spec.attempt,
        prompt_tokens=np.frombuffer(spec.prompt_tokens, _I32),
        seeds=tuple(spec.seeds),
        sampling=SamplingParams(
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            max_new_tokens=s.max_new_tokens,
            stop_ids=tuple(s.stop_ids),
        ),
        min_version=spec.min_version,
        resume=tuple(
            _sample_from_proto(sample, spec.group_id, index)
            for index, sample in enumerate(spec.resume)
        ),
    )


def reply_to_proto(group_id: int, rollouts: Iterable[Rollout]) -> pb.GroupReply:
    return pb.GroupReply(group_id=group_id, samples=[_sample_to_proto(r) for r in rollouts])


def reply_from_proto(reply: pb.GroupReply, worker: str, seeds: tuple[int, ...]) -> list[Rollout]:
    """Rollouts of one reply; unfinished ones are "cancelled" and may have no tokens yet.

    Raises:
      WorkerError: the answer does not fit the question, so nothing of it can be trained on.
    """
    try:
        rollouts = [
            _sample_from_proto(sample, reply.group_id, index, worker)
            for index, sample in enumerate(reply.samples)
        ]
    except ValueError as error:  # bytes that are no whole number of elements
        raise WorkerError(f"{worker}: group {reply.group_id} is garbled: {error}") from error
    if tuple(r.seed for r in rollouts) != seeds:
        raise WorkerError(f"{worker} answered group {reply.group_id} with other samples than asked")
    for r in rollouts:
        if why := defect(r):
            raise WorkerError(f"{worker}: group {r.group_id} sample {r.index} {why}")
    return rollouts


def defect(rollout: Rollout) -> str | None:
    """What makes a rollout useless to whoever gets it over the wire; None if nothing does."""
    r = rollout
    if r.finish_reason not in get_args(FinishReason):
        return f"ended by {r.finish_reason!r}"
    if not len(r.tokens) == len(r.logprob_full) == len(r.logprob_sampled) == len(r.versions):
        return "has uneven arrays"
    if len(r.tokens) == 0 and r.finish_reason != "cancelled":
        return "is empty"
    if not (np.isfinite(r.logprob_full).all() and np.isfinite(r.logprob_sampled).all()):
        return "has log-probs that are not finite"
    if (r.versions < 0).any() or (np.diff(r.versions) < 0).any():
        return "has versions that are negative or go backwards"
    return None


def describe(error: grpc.RpcError) -> str:
    """One line for a failed call."""
    code = getattr(error, "code", lambda: None)()
    details = getattr(error, "details", lambda: None)()
    return f"{getattr(code, 'name', 'UNKNOWN')}: {details or error}"
