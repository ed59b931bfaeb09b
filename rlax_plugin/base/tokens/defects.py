"""Rules that every sample of a group must satisfy, regardless of the engine that generated it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rlax_plugin.base.tokens.stopping import Decode, end_of
from rlax_plugin.base.types import EMPTY, Sampled, SamplingParams, SideSpec

ROUNDING = 1e-3
"""Nats by which a log-prob may exceed 0: float32 logits of magnitude 1e3 round by about 1e-4."""

LEAST_LOGPROB = -150.0
"""Nats below which no sampled token's log-prob is.

The smallest float32 probability above 0 is exp(-103.3), and a token of probability 0 is never
sampled; Gumbel noise in float64 stays above -43 less the logarithm of the vocabulary. The rest
allows for an engine that computes log-probs apart from its sampling, in another precision; as a
temperature below 1 divides that difference of logits too, it divides the limit.
"""

_PORTION = 8192  # tokens that are checked at once

_FINISHES = frozenset(("stop", "length", None))


def defect(
    samples: Sequence[Sampled],
    sampling: SamplingParams,
    vocabulary: int = 0,
    *,
    context_length: int = 0,
    side: Mapping[str, SideSpec] = EMPTY,
    decode: Decode | None = None,
    begun: Sequence[int] = (),
) -> str | None:
    """The defect that makes samples generated with ``sampling`` unusable; None if there is none.

    Short samples are checked many at once, so that each costs little.

    Args:
      samples: in order; unfinished ones may have no tokens.
      vocabulary: token ids are below it; 0: it is not known.
      context_length: number of tokens before each sample.
      side: the side channels that its worker has declared.
      decode: tokens to text, for stop strings; None skips the check that samples end at them.
      begun: number of tokens of each sample that were checked before and are not among those of
        ``samples``; (): none were. Stop strings then cannot be checked.

    Returns:
      A phrase such as ``sample 3 has log-probs above 0``.
    """
    most = sampling.max_new_tokens
    for index, s in enumerate(samples):
        count = len(s.tokens) + (begun[index] if begun else 0)
        if problem := _shape_defect(s, count, most):
            return f"sample {index} {problem}"
        if s.side and (problem := _side_defect(s, count, context_length, side)):
            return f"sample {index} {problem}"
    for portion in _portions(samples):
        some = [samples[index] for index in portion]
        ends = np.cumsum([len(s.tokens) for s in some])
        if (found := _tokens_defect(some, ends, sampling, vocabulary)) is not None:
            place, problem = found
            return f"sample {portion[int(np.searchsorted(ends, place, 'right'))]} {problem}"
    if sampling.stop_strings and decode is not None and not begun:
        for index, s in enumerate(samples):
            if problem := _string_defect(s, sampling, decode):
                return f"sample {index} {problem}"
    return None


def _portions(samples: Sequence[Sampled]) -> Iterator[list[int]]:
    """Indices of samples that have tokens, in portions whose arrays stay in a processor's cache."""
    portion: list[int] = []
    taken = 0
    for index, s in enumerate(samples):
        if not (count := len(s.tokens)):
            continue
        if portion and taken + count > _PORTION:
            yield portion
            portion, taken = [], 0
        portion.append(index)
        taken += count
    if portion:
        yield portion


def _joined(samples: Sequence[Sampled], name: str) -> np.ndarray:
    if len(samples) == 1:
        return getattr(samples[0], name)
    return np.concatenate([getattr(s, name) for s in samples])


def outside(tokens: np.ndarray, vocabulary: int) -> str | None:
    """Names the first token that is outside a model's vocabulary; None if there is none.

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


def _shape_defect(s: Sampled, count: int, most: int) -> str | None:
    finish = s.finish
    if finish not in _FINISHES:
        return f"ended by {finish!r}"
    if not len(s.tokens) == len(s.logprobs) == len(s.versions):
        return "has uneven arrays"
    if count == 0 and finish is not None:
        return "is empty"
    if count > most:
        return f"has {count} tokens, {most} were asked for"
    if finish == "length" and count < most:
        return f"ended by 'length' with {count} of {most} tokens"
    if finish is None and count == most:
        return f"is unfinished with all of its {most} tokens"
    return None


def _side_defect(
    s: Sampled, count: int, context_length: int, declared: Mapping[str, SideSpec]
) -> str | None:
    for name, array in s.side.items():
        if (spec := declared.get(name)) is None:
            return f"has a side channel {name!r}, which its worker has not declared"
        length = count + (context_length if spec.over == "context+sampled" else 0)
        if array.shape != (length, *spec.trailing) or array.dtype != np.dtype(spec.dtype):
            return (
                f"has a side channel {name!r} of {array.dtype}{list(array.shape)}: expected "
                f"{spec.dtype}{[length, *spec.trailing]}"
            )
    return None


def _tokens_defect(
    samples: Sequence[Sampled], ends: np.ndarray, sampling: SamplingParams, vocabulary: int
) -> tuple[int, str] | None:
    """Place of the first invalid token, among all tokens in order, and its defect."""
    tokens = _joined(samples, "tokens")
    if (place := _first_outside(tokens, vocabulary)) is not None:
        return place, f"has {outside(tokens[place : place + 1], vocabulary)}"
    logprobs = _joined(samples, "logprobs")
    lowest, highest = logprobs.min(), logprobs.max()  # NaN if any is
    if not (highest < np.inf and lowest > -np.inf):
        return int((~np.isfinite(logprobs)).argmax()), "has log-probs that are not finite"
    if highest > ROUNDING:
        return int(logprobs.argmax()), f"has log-probs above 0 ({highest:.4g})"
    least = LEAST_LOGPROB / min(1.0, sampling.temperature or 1.0)
    if lowest < least:
        why = f"below {least:g} ({lowest:.4g}), which no token that is sampled has"
        return int(logprobs.argmin()), f"has log-probs {why}"
    versions = _joined(samples, "versions")
    back = np.flatnonzero(versions[1:] < versions[:-1]) + 1  # another sample may begin there
    if (back := back[~np.isin(back, ends)]).size or versions.min() < 0:
        place = int(back[0]) if back.size else int(versions.argmin())
        return place, "has versions that are negative or go backwards"
    return _end_defect(samples, ends, tokens, sampling)


def _end_defect(
    samples: Sequence[Sampled], ends: np.ndarray, tokens: np.ndarray, sampling: SamplingParams
) -> tuple[int, str] | None:
    """Checks that each sample that ended by "stop", and no other, has one stop id, at its end.

    With stop strings, it may have ended at one of them instead.
    """
    stop_ids = sampling.stop_ids
    stops = np.zeros(len(tokens), bool)
    for stop_id in stop_ids:
        stops |= tokens == stop_id
    expected = [int(end) - 1 for s, end in zip(samples, ends, strict=True) if s.finish == "stop"]
    if sampling.stop_strings:
        expected = [place for place in expected if stops[place]]
    stops[expected] ^= True
    if not stops.any():
        return None
    place = int(stops.argmax())
    if place in expected:
        return place, f"ended by 'stop' with token {tokens[place]}; stop ids are {list(stop_ids)}"
    return place, f"has stop id {tokens[place]} and did not end with it by 'stop'"


def _string_defect(s: Sampled, sampling: SamplingParams, decode: Decode) -> str | None:
    """Checks that a sample ends with the first token that completes a stop string."""
    count, end = len(s.tokens), end_of(s.tokens, sampling.stop_strings, decode)
    shown = list(sampling.stop_strings)
    if end is not None and end < count:
        return f"goes on for {count - end} tokens behind a stop string; they are {shown}"
    if end is not None and s.finish != "stop":
        return f"has a stop string at its end and did not end by 'stop'; they are {shown}"
    if end is None and s.finish == "stop" and int(s.tokens[-1]) not in sampling.stop_ids:
        return (
            f"ended by 'stop' with token {s.tokens[-1]}; stop ids are {list(sampling.stop_ids)}, "
            f"stop strings {shown}"
        )
    return None
