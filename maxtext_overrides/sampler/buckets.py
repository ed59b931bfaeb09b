"""Plans the programs of a worker: which prefill takes a prompt, and how far decoding attends.

A prefill program takes a fixed number of prompts (rows) of a fixed length. All of them follow from
a worker's limits, so that they are compiled before the first request and no request needs another
one. A prompt's own length chooses its program: other prompts prefilled at the same time change
neither its program nor its results, except the last bits where contexts are kept. No JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_LENGTHS = 9  # with the program that scores a canary there are ten prefills to compile
MOST_BEHIND = 2  # lengths behind a context that a slot keeps, each for every reach
_MOST_SCORES = 2**23  # of one head in such a program
_SHORTEST = 16  # tokens; the cost of a call hardly depends on shorter prompts

# A call computes about as many tokens as one decode step, which is one per slot, unless one prompt
# is longer: so it costs about a decode step, on any hardware. More rows are dear for a prompt that
# comes alone, fewer rows for prompts that come together. With 64 slots, W2 of benchmarks/README.md
# took on two cores, for one prompt of 16 tokens and for the eight that fill its slots, 33 and
# 264 ms with 1 row, 52 and 104 ms with 4, 83 and 83 ms with 8, and 60 ms for a decode step.
_TOKENS_PER_SLOT = 1


# Decode programs that attend to different parts of the prompts' caches. Each is one more to
# compile, and in shorter caches attention takes a small part of a decode step. The longest prompt
# in the slots chooses the program, so it may change the last bits of its neighbours' log-probs; a
# deterministic run decodes a group alone.
MOST_REACHES = 3
_SHORTEST_REACH = 128  # tokens
_REACH_FACTOR = 4


# The attention kernel of TPUs takes multiples of 128 tokens that its blocks divide; a block is no
# longer than the length. Where MaxText chooses, it takes another kernel below 128 tokens.
_KERNELS, _LANES = ("autoselected", "flash"), 128
_BLOCKS = ("sa_block_q", "sa_block_kv", "sa_block_kv_compute")


def fitting(tokens: int, value_of: Callable[[str], Any]) -> int:
    """Returns the smallest length from ``tokens`` on that the kernel of a prefill takes.

    It is ``tokens`` where any length will do, and where the blocks are such that none does.

    Args:
      value_of: called with a key of MaxText, returns its value.
    """
    kernel = value_of("attention")
    short = tokens < _LANES and kernel == "autoselected"
    if value_of("hardware") != "tpu" or kernel not in _KERNELS or short:
        return tokens
    blocks, first = [value_of(key) for key in _BLOCKS], -(-tokens // _LANES) * _LANES
    if min(blocks) < 1:
        return tokens
    lengths = range(first, first + math.lcm(_LANES, *blocks) + 1, _LANES)
    taken = (n for n in lengths if _divided(n, *(min(block, n) for block in blocks)))
    return next(taken, tokens)


def _divided(length: int, queries: int, keys: int, computed: int) -> bool:
    return not (length % queries or length % keys or keys % computed)


@dataclass(frozen=True, slots=True)
class Bucket:
    """One prefill program: ``rows`` prompts of at most ``length`` tokens each."""

    rows: int
    length: int


def plan(
    slots: int,
    longest: int,
    prompt_tokens: int,
    group_size: int,
    rows_multiple: int = 1,
    fits: Callable[[int], int] = int,
) -> tuple[Bucket, ...]:
    """Returns the prefill programs of a worker, one per length, in increasing length.

    Args:
      slots: number of sequences decoded at once.
      longest: tokens that a prefill may hold: a prompt, and the tokens of a continued sample.
      prompt_tokens: the longest prompt without such tokens.
      group_size: samples that usually share a prompt. Groups that fill all slots at once need
        ``slots / group_size`` rows, and a program has no more.
      rows_multiple: number of devices among which rows are divided.
      fits: see ``fitting``; the two given lengths do.
    """
    budget = _TOKENS_PER_SLOT * slots
    most = -(-slots // min(group_size, slots))
    buckets = []
    for length in sorted({fits(n) for n in _lengths(longest, min(prompt_tokens, longest))}):
        rows = max(1, min(budget // length, most if length <= prompt_tokens else slots))
        buckets.append(Bucket(-(-rows // rows_multiple) * rows_multiple, length))
    return tuple(buckets)


def behind(buckets: Sequence[Bucket], slots: int, rows_multiple: int = 1) -> tuple[Bucket, ...]:
    """Returns the programs that prefill tokens behind a context that a slot keeps, ascending.

    They are few, as each is compiled for every reach, and short, as their attention holds a score
    for each pair of tokens. What is longer is prefilled with its context.

    Args:
      buckets: returned by ``plan``; the last one holds the longest context.
      slots, rows_multiple: see ``plan``.
    """
    longest, found = buckets[-1].length, []
    for length in (bucket.length for bucket in buckets if bucket.length <= longest // 2):
        # One sample behind each context: a group shares nothing but its prompt.
        rows = max(1, _TOKENS_PER_SLOT * slots // length)
        rows = -(-min(rows, slots) // rows_multiple) * rows_multiple
        if rows * length * (longest + length) <= _MOST_SCORES:
            found.append(Bucket(rows, length))
    return (found[0], found[-1]) if len(found) > MOST_BEHIND else tuple(found)


def of(buckets: Sequence[Bucket], length: int) -> Bucket:
    """Returns the program that takes a prompt of a length, which fits the longest one."""
    return next(bucket for bucket in buckets if length <= bucket.length)


def calls(buckets: Sequence[Bucket], lengths: Sequence[int]) -> list[tuple[Bucket, list[int]]]:
    """Decides which prefill program computes which prompts.

    Args:
      buckets: returned by ``plan``.
      lengths: lengths of the prompts in tokens; the longest must fit the longest bucket.

    Returns:
      Each call's program and the indices of its prompts, at most as many as it has rows.
    """
    members: dict[Bucket, list[int]] = {bucket: [] for bucket in buckets}
    for index, length in enumerate(lengths):
        members[of(buckets, length)].append(index)
    return [
        (bucket, indices[start : start + bucket.rows])
        for bucket, indices in members.items()
        for start in range(0, len(indices), bucket.rows)
    ]


def reaches(longest: int) -> tuple[int, ...]:
    """Returns the parts of the prompts' caches to which decode programs attend, ascending.

    Args:
      longest: tokens of a slot's cache of the prompt, the last of the parts.
    """
    found = [longest]
    while len(found) < MOST_REACHES and (shorter := found[0] // _REACH_FACTOR) >= _SHORTEST_REACH:
        found.insert(0, shorter)
    return tuple(found)


def copied(longest: int) -> int:
    """Returns how many places of the prompts' caches a decode program copies at most; or 0.

    The one that attends to all of them copies none.
    """
    *shorter, _ = reaches(longest)
    return max(shorter, default=0)


def _lengths(longest: int, prompt_tokens: int) -> list[int]:
    """Returns the lengths to compile, ascending: the two given ones, and powers of two below them.

    If these are too many, they are powers of four, eight or sixteen.
    """
    exact = {prompt_tokens, longest}
    for factor in (2, 4, 8, 16):
        for shortest in (_SHORTEST * 2**i for i in range(6)):
            powers = (shortest * factor**i for i in range(longest.bit_length()))
            # One just below an exact length would save too little to be worth compiling.
            apart = {p for p in powers if p < longest and not any(p <= e < 1.25 * p for e in exact)}
            if len(apart | exact) <= MOST_LENGTHS:
                return sorted(apart | exact)
    raise ValueError(f"prompts of {longest} tokens")
