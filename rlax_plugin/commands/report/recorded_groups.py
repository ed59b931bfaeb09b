"""The places of a run's recorded groups, and the space that they need on a page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rlax_plugin.errors import RlaxError
from rlax_plugin.records.files import RunFiles
from rlax_plugin.records.read_samples import rows_of

# What a token (its id and log-prob, as good as random) and a character of text add to the page,
# compressed and in base64: somewhat more than was measured.
_BYTES_PER_TOKEN, _BYTES_PER_CHARACTER, _BYTES_PER_ROLLOUT = 6.2, 0.65, 30
_BYTES_PER_TURN = 12


_READ = (
    *("step", "state", "group", "trajectory", "prompt_id", "prompt"),
    *("completion", "texts", "versions", "reward", "pass_rate_before"),
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
      mixed: True if its rewards differ.
      pass_rate_before: pass rate of its prompt before; None: the prompt had none.
    """

    file: str
    group: int
    step: int
    trained: bool
    prompt_id: str
    samples: int
    size: float
    mixed: bool = False
    pass_rate_before: float | None = None


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
    table = read_rows(files, name, _READ)
    tokens = table["versions"].combine_chunks().value_lengths().to_pylist()
    ids, trajectories = table["group"].to_pylist(), table["trajectory"].to_pylist()
    starts = {group: row for row, group in reversed(list(enumerate(ids)))}
    counts, size = Counter[int](), defaultdict[int, float](float)
    rewards = defaultdict[int, set[float]](set)
    for group, reward in zip(ids, table["reward"].to_pylist(), strict=True):
        if reward is not None:
            rewards[group].add(reward)
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
    head = (
        table.select(["step", "state", "prompt_id", "prompt", "pass_rate_before"])
        .take(list(starts.values()))
        .to_pylist()
    )
    for group, row in zip(starts, head, strict=True):
        of_prompt = len(row["prompt"]) * _BYTES_PER_CHARACTER
        yield GroupAt(
            file=name,
            group=group,
            step=row["step"],
            trained=row["state"] == "trained",
            prompt_id=row["prompt_id"],
            samples=counts[group],
            size=size[group] + of_prompt,
            mixed=len(rewards[group]) > 1,
            pass_rate_before=row["pass_rate_before"],
        )
