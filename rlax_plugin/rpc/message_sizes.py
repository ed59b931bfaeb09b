"""How large a message may be, which configs exceed it, and how many requests fit into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlax_plugin.config import RlaxSection
from rlax_plugin.errors import ConfigError
from rlax_plugin.types import Request

MESSAGE_BYTES = 1 << 30
"""No message is larger, whoever sends it: a reply holds one group, a request as many as fit."""

_TOKEN_BYTES = 16  # of a sample: the token, its log-prob, a version, a side channel
_SAMPLE_BYTES = 128  # its seed, how it ended and what protobuf adds, at most
_GROUP_BYTES = 4096  # sampling settings and the like, at most
_PROMPT_TOKEN_BYTES = 4


def group_bytes(samples: int, tokens: int, prompt_tokens: int = 0) -> int:
    """What a group takes in a message, at most: as an answer, or as a request that resumes it.

    Args:
      tokens: of all samples together.
    """
    prompt = prompt_tokens * _PROMPT_TOKEN_BYTES
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
        tokens, prompt = rollouts.max_new_tokens, section.max_context_tokens
        if (needed := group_bytes(samples, samples * tokens, prompt)) > MESSAGE_BYTES:
            empty = group_bytes(0, 0, prompt)
            most = max(0, MESSAGE_BYTES - empty) // (group_bytes(1, tokens, prompt) - empty)
            limit = f"bytes, but a message can hold {MESSAGE_BYTES:,}"
            if not most:
                reason = f"a single sample may take {group_bytes(1, tokens, prompt):,} {limit}"
                raise ConfigError("rlax.rollouts.max_new_tokens", tokens, reason)
            reason = (
                f"makes groups of up to {needed:,} {limit}: at most {most} samples fit with "
                f"rlax.rollouts.max_new_tokens = {tokens}"
            )
            raise ConfigError(key, samples, reason)


def in_messages(requests: Iterable[Request]) -> Iterator[list[Request]]:
    """As many requests at once as fit into a message, in order."""
    together: list[Request] = []
    taken = 0
    for request in requests:
        tokens = sum(len(r.tokens) for r in request.resume)
        size = group_bytes(len(request.seeds), tokens, len(request.context))
        if together and taken + size > MESSAGE_BYTES:
            yield together
            together, taken = [], 0
        together.append(request)
        taken += size
    if together:
        yield together
