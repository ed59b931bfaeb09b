"""Records to protocol messages and back. Arrays travel as little-endian bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import grpc
import numpy as np

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError, WorkerError
from rlax_plugin.text.harmless import one_line
from rlax_plugin.rpc import rlax_pb2 as pb
from rlax_plugin.types import FinishReason, GroupRequest, Rollout, SamplingParams

MESSAGE_BYTES = 1 << 30
"""No message is larger, whoever sends it: a reply holds one group, a request as many as fit."""

_TOKEN_BYTES = 16  # of a sample: the token, two log-probs, the version
_SAMPLE_BYTES = 128  # its seed, its finish reason and what protobuf adds, at most
_GROUP_BYTES = 4096  # sampling settings and the like, at most

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.so_reuseport", 0),
    # Reconnect soon after a rejection: a restarted worker is back within seconds.
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
    """Rollouts of one reply, of which ``rollouts/replies.py`` is yet to check what is in them.

    Raises:
      WorkerError: it is garbled, or has other samples than were asked for.
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
    return rollouts


def group_bytes(samples: int, tokens: int, prompt_tokens: int = 0) -> int:
    """What a group takes in a message, at most: as an answer, or as a request that resumes it.

    Args:
      tokens: of all samples together.
    """
    prompt = prompt_tokens * _I32.itemsize
    return _GROUP_BYTES + prompt + samples * _SAMPLE_BYTES + tokens * _TOKEN_BYTES


def check_messages(section: RlaxSection) -> None:
    """Rejects a config whose groups may be too large for a message.

    A worker could not send such a group, and the controller would take the worker for lost.

    Raises:
      ConfigError: names how many samples fit.
    """
    rollouts, evaluation = section.rollouts, section.evaluation
    asked = {"rlax.rollouts.group_size": rollouts.group_size}
    if evaluation.problems:
        for name, one in evaluation.all_sets().items():
            where = "" if name == evaluation.split else f"sets.{name}."
            asked[f"rlax.evaluation.{where}samples"] = one.samples or 1
    for key, samples in asked.items():
        tokens, prompt = rollouts.max_new_tokens, rollouts.max_prompt_tokens
        if (needed := group_bytes(samples, samples * tokens, prompt)) > MESSAGE_BYTES:
            empty = group_bytes(0, 0, prompt)
            most = max(0, MESSAGE_BYTES - empty) // (group_bytes(1, tokens, prompt) - empty)
            limit = f"bytes, a message holds {MESSAGE_BYTES:,}"
            if not most:
                reason = f"a single sample may take {group_bytes(1, tokens, prompt):,} {limit}"
                raise ConfigError("rlax.rollouts.max_new_tokens", tokens, reason)
            reason = (
                f"makes groups of up to {needed:,} {limit}: at most {most} samples fit with "
                f"rlax.rollouts.max_new_tokens = {tokens}"
            )
            raise ConfigError(key, samples, reason)


def in_messages(requests: Iterable[GroupRequest]) -> Iterator[list[GroupRequest]]:
    """As many requests at once as fit into a message, in order."""
    together: list[GroupRequest] = []
    taken = 0
    for request in requests:
        tokens = sum(len(r.tokens) for r in request.resume)
        size = group_bytes(len(request.seeds), tokens, len(request.prompt_tokens))
        if together and taken + size > MESSAGE_BYTES:
            yield together
            together, taken = [], 0
        together.append(request)
        taken += size
    if together:
        yield together


def describe(error: grpc.RpcError, deadline: tuple[float, str] | None = None) -> str:
    """One line for a failed call.

    Args:
      deadline: the call's own, as (seconds, dotted config key), for the case that it has passed:
        gRPC's status names neither.
    """
    code = getattr(error, "code", lambda: None)()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {deadline[0]:g} s ({deadline[1]})" if deadline else "no answer"
    details = getattr(error, "details", lambda: None)()
    return f"{getattr(code, 'name', 'UNKNOWN')}: {one_line(str(details or error))}"
