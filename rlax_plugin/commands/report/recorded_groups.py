"""Where the groups of a run are recorded, and what it costs to show them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.errors import RlaxError
from rlax_plugin.records import samples
from rlax_plugin.records.files import RunFiles

# What a token (its id and log-prob, as good as random) and a character of text add to the page,
# compressed and in base64: somewhat more than was measured.
_BYTES_PER_TOKEN, _BYTES_PER_CHARACTER, _BYTES_PER_ROLLOUT = 6.2, 0.65, 30
_SIZES = ["step", "group_id", "prompt_id", "prompt", "completion", "versions"]


@dataclass(frozen=True, slots=True)
class GroupAt:
    """Where a group of samples is recorded, and what it costs to show it.

    Attributes:
      file: name of the Parquet file.
      step: it trained at, or that was next when it was scored.
      samples: their number.
      size: estimated bytes on the page, at most.
    """

    file: str
    group: int
    step: int
    prompt_id: str
    samples: int
    size: float


def read_parquet(files: RunFiles, name: str, columns: list[str] | None = None) -> pa.Table:
    """Rows of a file of samples; all columns, or some.

    Raises:
      RlaxError: it is damaged, or lacks a column.
    """
    try:
        table = pq.ParquetFile(pa.BufferReader(files.get(name))).read(columns)
    except FileNotFoundError:
        raise RlaxError(f"{name} was deleted while it was read") from None
    except (pa.ArrowException, ValueError) as error:
        raise RlaxError(f"{name} is damaged: {error}") from error
    if lacking := set(columns or samples.SCHEMA.names) - set(table.column_names):
        raise RlaxError(f"{name} has no column {min(lacking)}: another version wrote it")
    return table


def sample_files(files: RunFiles) -> list[str]:
    """Names of all files with samples, those that trained first."""
    return [
        f"{directory}/{name}"
        for directory in ("batches", "rollouts")
        for name in files.names(directory)
        if name.endswith(".parquet")
    ]


def groups_in(files: RunFiles, name: str) -> Iterator[GroupAt]:
    """The groups of one file.

    Raises:
      RlaxError: it is damaged.
    """
    table = read_parquet(files, name, _SIZES)
    tokens = table["versions"].combine_chunks().value_lengths().to_pylist()
    texts = table["completion"].to_pylist()
    ids = table["group_id"].to_pylist()
    starts = {group: row for row, group in reversed(list(enumerate(ids)))}
    counts = Counter(ids)
    size: defaultdict[int, float] = defaultdict(float)
    for group, length, text in zip(ids, tokens, texts, strict=True):
        size[group] += length * _BYTES_PER_TOKEN + len(text) * _BYTES_PER_CHARACTER
        size[group] += _BYTES_PER_ROLLOUT
    head = table.select(["step", "prompt_id", "prompt"]).take(list(starts.values())).to_pylist()
    for group, row in zip(starts, head, strict=True):
        of_prompt = len(row["prompt"]) * _BYTES_PER_CHARACTER
        yield GroupAt(
            name, group, row["step"], row["prompt_id"], counts[group], size[group] + of_prompt
        )
