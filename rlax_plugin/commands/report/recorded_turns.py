"""Reads the episodes of a file of samples for the page, each with all of its turns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rlax_plugin.records import samples
from rlax_plugin.text.harmless import harmless

_ARRAYS = ("tokens", "logprobs", "versions")
_READ = [name for name in samples.SCHEMA.names if name not in (*_ARRAYS, "metadata")]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One episode.

    Attributes:
      row: columns of its first trajectory for a row of the table; ``workers``, ``finish``,
        ``turn_order`` and ``token_advantages`` are those of all trajectories.
      arrays: tokens, log-probs and versions that were sampled in all its turns.
      turns: [given text, sampled text, number of sampled tokens, finish, reward at its tokens or
        None, trajectory] for each turn; empty if there is only one.
      asked: int32, the first given tokens if they are not the prompt; None otherwise.
    """

    row: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    turns: Sequence[Sequence[Any]]
    asked: np.ndarray | None


def recorded_in(table: pa.Table) -> Iterator[Recorded]:
    """Yields the episodes in rows of whole groups, in their order."""
    rows = table.select(_READ).to_pylist()
    lists = zip(*(table[name].to_pylist() for name in _ARRAYS), strict=True)
    both = zip(rows, lists, strict=True)
    for _, found in itertools.groupby(both, key=lambda one: (one[0]["group"], one[0]["sample"])):
        of_rows, of_arrays = zip(*found, strict=True)
        first = of_rows[0]
        yield Recorded(
            row=first
            | {
                name: [value for row in of_rows for value in row[name] or ()]
                for name in ("workers", "finish", "turn_order", "token_advantages")
            },
            arrays={
                name: np.concatenate([np.asarray(values[at]) for values in of_arrays])
                for at, name in enumerate(_ARRAYS)
            },
            turns=_turns(of_rows, [len(values[0]) for values in of_arrays]),
            asked=_asked(first),
        )


def _turns(rows: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> list[list[Any]]:
    texts = [harmless(text) for text in rows[0]["texts"] or ()]
    if len(texts) + 1 != 2 * sum(len(row["finish"]) for row in rows):
        return []  # one turn, or a record that says less than it should
    pairs = itertools.batched(["", *texts], 2)  # the prompt is left out
    turns = []
    for row, length in zip(rows, lengths, strict=True):
        counts = row["sampled_lengths"] or [length]
        ends = np.cumsum(counts)
        paid = row["token_rewards"]
        sums = [None] * len(counts) if paid is None else np.add.reduceat(paid, ends - counts)
        for count, finish, reward in zip(counts, row["finish"], sums, strict=True):
            given, sampled = next(pairs)
            reward = None if reward is None else round(float(reward), 6)
            turns.append([given, sampled, count, finish, reward, row["trajectory"]])
    return turns


def _asked(row: Mapping[str, Any]) -> np.ndarray | None:
    if row["prompt_tokens"] is None:
        return None
    count = (row["given_lengths"] or [len(row["given"])])[0]
    return np.array(row["given"][:count], np.int32)


def figures_of(text: str | None) -> dict[str, float]:
    """Parses the metrics of rewards and the environment; {} if they cannot be read."""
    try:
        found = json.loads(text or "{}")
        return {harmless(str(name)): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
