"""What must hold of every sample of a group, whoever generated it: the owner of these rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from rlax_plugin.types import FinishReason, Rollout, SamplingParams

ROUNDING = 1e-3
"""Nats by which a log-prob may exceed 0: float32 logits of magnitude 1e3 round by about 1e-4."""

_PORTION = 8192  # tokens that are checked at once

_REASONS = frozenset(get_args(FinishReason))


def defect(
    rollouts: Sequence[Rollout], sampling: SamplingParams, vocabulary: int = 0
) -> str | None:
    """What makes samples useless that were generated with ``sampling``; None if nothing does.

    Short samples are checked many at once, so that each costs little.

    Args:
      rollouts: in sample order; "cancelled" ones are unfinished and may have no tokens.
      vocabulary: token ids are below it; 0: it is not known.

    Returns:
      Such as ``sample 3 has log-probs above 0``.
    """
    most = sampling.max_new_tokens
    for r in rollouts:
        count = len(r.tokens)
        if problem := _shape_defect(r, count, most):
            return f"sample {r.index} {problem}"
    for some in _portions(rollouts):
        ends = np.cumsum([len(r.tokens) for r in some])
        if (found := _tokens_defect(some, ends, sampling, vocabulary)) is not None:
            place, problem = found
            return f"sample {some[int(np.searchsorted(ends, place, 'right'))].index} {problem}"
    return None


def _portions(rollouts: Sequence[Rollout]) -> Iterator[list[Rollout]]:
    """Samples that have tokens, in portions whose arrays stay in a processor's cache."""
    portion: list[Rollout] = []
    taken = 0
    for r in rollouts:
        if not (count := len(r.tokens)):
            continue
        if portion and taken + count > _PORTION:
            yield portion
            portion, taken = [], 0
        portion.append(r)
        taken += count
    if portion:
        yield portion


def _joined(rollouts: Sequence[Rollout], name: str) -> np.ndarray:
    if len(rollouts) == 1:
        return getattr(rollouts[0], name)
    return np.concatenate([getattr(r, name) for r in rollouts])


def outside(tokens: np.ndarray, vocabulary: int) -> str | None:
    """Names the first token that is no token of a model; None if all are.

    Args:
      tokens: int32, at least one.
      vocabulary: token ids are below it; 0: it is not known.
    """
    place = _first_outside(tokens, vocabulary)
    if place is None:
        return None
    rule = f"must be from 0 to {vocabulary - 1}" if vocabulary else "must not be negative"
    return f"token id {tokens[place]}, which {rule}"


def _first_outside(tokens: np.ndarray, vocabulary: int) -> int | None:
    if tokens.min() >= 0 and not (vocabulary and tokens.max() >= vocabulary):
        return None
    wrong = tokens < 0
    if vocabulary:
        wrong |= tokens >= vocabulary
    return int(wrong.argmax())


def _shape_defect(r: Rollout, count: int, most: int) -> str | None:
    reason = r.finish_reason
    if reason not in _REASONS:
        return f"ended by {reason!r}"
    if not count == len(r.logprob_full) == len(r.logprob_sampled) == len(r.versions):
        return "has uneven arrays"
    if count == 0 and reason != "cancelled":
        return "is empty"
    if count > most:
        return f"has {count} tokens, {most} were asked for"
    if reason == "length" and count < most:
        return f"ended by 'length' with {count} of {most} tokens"
    if reason == "cancelled" and count == most:
        return f"is unfinished with all of its {most} tokens"
    return None


def _tokens_defect(
    rollouts: Sequence[Rollout], ends: np.ndarray, sampling: SamplingParams, vocabulary: int
) -> tuple[int, str] | None:
    """The place, among all tokens in order, of the first that is wrong; and what is."""
    tokens = _joined(rollouts, "tokens")
    if (place := _first_outside(tokens, vocabulary)) is not None:
        return place, f"has {outside(tokens[place : place + 1], vocabulary)}"
    for name in ("logprob_full", "logprob_sampled"):
        logprobs = _joined(rollouts, name)
        highest = logprobs.max()  # NaN if any is
        if not (highest < np.inf and logprobs.min() > -np.inf):
            return int((~np.isfinite(logprobs)).argmax()), "has log-probs that are not finite"
        if highest > ROUNDING:
            place = int(logprobs.argmax())
            return place, f"has log-probs above 0 ({name} is {highest:.4g})"
    versions = _joined(rollouts, "versions")
    back = np.flatnonzero(versions[1:] < versions[:-1]) + 1  # another sample may begin there
    if (back := back[~np.isin(back, ends)]).size or versions.min() < 0:
        place = int(back[0]) if back.size else int(versions.argmin())
        return place, "has versions that are negative or go backwards"
    return _end_defect(rollouts, ends, tokens, sampling.stop_ids)


def _end_defect(
    rollouts: Sequence[Rollout], ends: np.ndarray, tokens: np.ndarray, stop_ids: Sequence[int]
) -> tuple[int, str] | None:
    """A stop id stands at the end of each sample that ended by "stop", and nowhere else."""
    stops = np.zeros(len(tokens), bool)
    for stop_id in stop_ids:
        stops |= tokens == stop_id
    expected = [int(end) - 1 for r, end in zip(rollouts, ends, strict=True) if _stopped(r)]
    stops[expected] ^= True
    if not stops.any():
        return None
    place = int(stops.argmax())
    if place in expected:
        return place, f"ended by 'stop' with token {tokens[place]}; stop ids are {list(stop_ids)}"
    return place, f"has stop id {tokens[place]} and did not end with it by 'stop'"


def _stopped(rollout: Rollout) -> bool:
    return rollout.finish_reason == "stop"
