"""Reads the samples of a run for the page: the groups of all files, then the episodes of some."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.files.run_files import RunFiles
from rlax_plugin.base.text.harmless import harmless
from rlax_plugin.run.state import journal, samples
from rlax_plugin.run.state.read_samples import rows_of
from rlax_plugin.tools.commands.report.run import Progress, RunData

# What a token (its id and log-prob, as good as random) and a character of text add to the page,
# compressed and in base64: somewhat more than was measured.
_BYTES_PER_TOKEN, _BYTES_PER_CHARACTER, _BYTES_PER_ROLLOUT = 6.2, 0.65, 30
_BYTES_PER_TURN = 12


_COLUMNS_OF_GROUPS = (
    *("step", "state", "group", "trajectory", "prompt", "completion", "texts", "versions"),
)


@dataclass(frozen=True, slots=True)
class GroupAt:
    """The place of a recorded group of samples, and the space that it needs on a page.

    Attributes:
      file: name of the Parquet file.
      step: step at which it trained, or the next step when it was scored.
      trained: True if the file's batch trained on it.
      samples: number of samples.
      size: upper estimate of its bytes on the page.
    """

    file: str
    group: int
    step: int
    trained: bool
    samples: int
    size: float


def read_rows(files: RunFiles, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads rows of a file of samples, with all columns or some.

    Raises:
      RlaxError: the file is damaged, or lacks a column.
    """
    try:
        return rows_of(files.get(name), name, columns)
    except FileNotFoundError:
        raise RlaxError(f"{name} was deleted while it was read") from None


def groups_in(files: RunFiles, name: str) -> Iterator[GroupAt]:
    """Yields the groups of one file.

    Raises:
      RlaxError: the file is damaged.
    """
    table = read_rows(files, name, _COLUMNS_OF_GROUPS)
    tokens = table["versions"].combine_chunks().value_lengths().to_pylist()
    ids, trajectories = table["group"].to_pylist(), table["trajectory"].to_pylist()
    starts = {group: row for row, group in reversed(list(enumerate(ids)))}
    counts, size = Counter[int](), defaultdict[int, float](float)
    texts = zip(table["completion"].to_pylist(), table["texts"].to_pylist(), strict=True)
    for group, trajectory, length, (text, of_turns) in zip(
        ids, trajectories, tokens, texts, strict=True
    ):
        size[group] += length * _BYTES_PER_TOKEN
        if trajectory:  # of an episode that is counted already
            continue
        counts[group] += 1
        of_turns = of_turns or ()
        characters = len(text) + sum(map(len, of_turns))
        size[group] += characters * _BYTES_PER_CHARACTER
        size[group] += _BYTES_PER_ROLLOUT + _BYTES_PER_TURN * len(of_turns)
    head = table.select(["step", "state", "prompt"]).take(list(starts.values())).to_pylist()
    for group, row in zip(starts, head, strict=True):
        of_prompt = len(row["prompt"]) * _BYTES_PER_CHARACTER
        yield GroupAt(
            file=name,
            group=group,
            step=row["step"],
            trained=row["state"] == "trained",
            samples=counts[group],
            size=size[group] + of_prompt,
        )


_ARRAYS = ("tokens", "logprobs", "versions")
_COLUMNS_OF_EPISODES = [name for name in samples.SCHEMA.names if name not in (*_ARRAYS, "metadata")]


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
    rows = table.select(_COLUMNS_OF_EPISODES).to_pylist()
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
    count = next(iter(row["given_lengths"] or ()), len(row["given"]))
    return np.array(row["given"][:count], np.int32)


def figures_of(text: str | None) -> dict[str, float]:
    """Parses the metrics of rewards and the environment; {} if they cannot be read."""
    try:
        found = json.loads(text or "{}")
        return {harmless(str(name)): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def recorded_groups(files: RunFiles, run: RunData, progress: Progress) -> list[GroupAt]:
    """Returns every recorded group once; a trained group as in its batch.

    Raises:
      RlaxError: the file system fails.
    """
    names = journal.sample_files(files)
    found: dict[int, GroupAt] = {}
    for done, name in enumerate(names, start=1):
        with run.noting():
            for group in groups_in(files, name):
                if group.trained or group.group not in found:
                    found[group.group] = group
        progress("rollouts", done, len(names))
    return list(found.values())


def recorded_episodes(
    files: RunFiles, run: RunData, chosen: Iterable[GroupAt], progress: Progress
) -> Iterator[Recorded]:
    """Yields the episodes of some groups, in the order of files, steps and groups.

    Raises:
      RlaxError: the file system fails.
    """
    by_file: dict[str, list[int]] = {}
    for group in sorted(chosen, key=lambda group: (group.file, group.step, group.group)):
        by_file.setdefault(group.file, []).append(group.group)
    for done, (name, wanted) in enumerate(by_file.items(), start=1):
        of_group: dict[int, list[Recorded]] = {}
        with run.noting():
            for one in recorded_in(samples.only(read_rows(files, name), set(wanted))):
                of_group.setdefault(one.row["group"], []).append(one)
        for group in wanted:
            yield from of_group.get(group, ())
        progress("tokens", done, len(by_file))
