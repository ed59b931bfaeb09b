"""Records to protocol messages and back. Arrays travel as little-endian bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np

from rlax_plugin.errors import WorkerError
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import FinishReason, GroupRequest, Rollout, SamplingParams

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
    """Rollouts of one reply, of which ``rollouts/replies.py`` is yet to check what is in them.

    Raises:
      WorkerError: it is garbled, or has samples that were not requested.
    """
    try:
        rollouts = [
            _sample_from_proto(sample, reply.group_id, index, worker)
            for index, sample in enumerate(reply.samples)
        ]
    except ValueError as error:  # bytes that are no whole number of elements
        raise WorkerError(f"{worker}: group {reply.group_id} is garbled: {error}") from error
    if tuple(r.seed for r in rollouts) != seeds:
        raise WorkerError(f"{worker} answered group {reply.group_id} with samples that were not requested")
    return rollouts
