"""Groups of samples as Parquet: one row per sample, readable by people and exact for machines."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Container, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.errors import RlaxError
from rlax_plugin.types import FinishReason, Group, Prompt, Rollout

ScoredGroup = tuple[Group, str | None]
"""A scored group, and why it was rejected; None where it was accepted."""

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # the step it trains at, or that was next when it was scored
        ("group_id", pa.int64()),
        ("sample", pa.int32()),
        ("attempt", pa.int32()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("reference", pa.string()),
        ("completion", pa.string()),
        ("prompt_tokens", pa.list_(pa.int32())),
        ("tokens", pa.list_(pa.int32())),
        ("logprob_full", pa.list_(pa.float32())),
        ("logprob_sampled", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("seed", pa.uint64()),
        ("finish_reason", pa.string()),
        ("worker", pa.string()),
        ("reward", pa.float64()),  # null where scoring failed
        ("reward_parts", pa.list_(pa.float64())),  # of each of rlax.rewards; empty if it failed
        ("reward_error", pa.string()),
        ("advantage", pa.float64()),  # null outside of batches; without KL in the reward
        ("measured_pass_rate", pa.float64()),  # null where the prompt was new
        ("rejected", pa.string()),  # null where the group was accepted
    ]
)

_GROUP_SCHEMA = SCHEMA.remove(0)
# Field of a rollout -> its column.
_OF_ROLLOUT = {
    "index": "sample",
    "text": "completion",
    "seed": "seed",
    "finish_reason": "finish_reason",
    "worker": "worker",
    "reward": "reward",
    "reward_parts": "reward_parts",
    "reward_error": "reward_error",
    "tokens": "tokens",
    "logprob_full": "logprob_full",
    "logprob_sampled": "logprob_sampled",
    "versions": "versions",
}
_ARRAYS = {"tokens": "<i4", "logprob_full": "<f4", "logprob_sampled": "<f4", "versions": "<i4"}


def _lists(arrays: Sequence[np.ndarray], offsets: np.ndarray, dtype: str) -> pa.ListArray:
    """Rows of different lengths; one copy instead of a Python object per element."""
    values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(offsets, values.astype(dtype, copy=False))


def _offsets(arrays: Sequence[np.ndarray]) -> np.ndarray:
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, arrays), np.int32, len(arrays)), out=offsets[1:])
    return offsets


def to_table(judged: Sequence[ScoredGroup]) -> pa.Table:
    """One row per sample, groups in the given order, in ``SCHEMA``'s columns but ``step``."""
    groups = [g for g, _ in judged]
    counts = [len(g.rollouts) for g in groups]
    row_group = pa.array(np.repeat(np.arange(len(groups)), counts))
    prompt_tokens = [g.prompt.tokens for g in groups]
    of_group: dict[str, Any] = {
        "group_id": [g.id for g in groups],
        "attempt": [g.attempt for g in groups],
        "prompt_id": [g.prompt.id for g in groups],
        "prompt": [g.prompt.text for g in groups],
        "reference": [g.prompt.reference for g in groups],
        "prompt_tokens": _lists(prompt_tokens, _offsets(prompt_tokens), "<i4"),
        "measured_pass_rate": [g.measured_pass_rate for g in groups],
        "rejected": [rejected for _, rejected in judged],
    }
    columns: dict[str, Any] = {
        name: pa.array(values, SCHEMA.field(name).type).take(row_group)
        for name, values in of_group.items()
    }
    # All fields of all rollouts in one pass: this runs before every train step.
    fields = map(operator.attrgetter(*_OF_ROLLOUT), (r for g in groups for r in g.rollouts))
    found = list(zip(*fields, strict=True)) or [()] * len(_OF_ROLLOUT)
    columns |= dict(zip(_OF_ROLLOUT.values(), found, strict=True))
    columns["advantage"] = [
        value
        for g, count in zip(groups, counts, strict=True)
        for value in ([None] * count if g.advantages is None else g.advantages.tolist())
    ]
    offsets = _offsets(columns["tokens"])
    for name, dtype in _ARRAYS.items():
        columns[name] = _lists(columns[name], offsets, dtype)
    return pa.table([columns[f.name] for f in _GROUP_SCHEMA], schema=_GROUP_SCHEMA)


def select(rows: pa.Table, groups: Sequence[int]) -> pa.Table:
    """The rows of some groups, in the order of ``groups``.

    Raises:
      KeyError: a group has no rows.
    """
    ids = rows.column("group_id").to_numpy()
    starts = np.flatnonzero(np.diff(ids, prepend=-1 - ids[:1]))
    ends = np.append(starts[1:], len(ids))
    spans = {int(ids[a]): np.arange(a, b) for a, b in zip(starts, ends, strict=True)}
    wanted = [spans[group] for group in groups]
    return rows.take(np.concatenate(wanted) if wanted else np.zeros(0, np.int64))


def only(rows: pa.Table, groups: Container[int]) -> pa.Table:
    """The rows of some groups, in the order they have."""
    ids = rows.column("group_id").to_pylist()
    return rows.filter(pa.array([group in groups for group in ids], pa.bool_()))


def from_table(table: pa.Table) -> list[ScoredGroup]:
    """The groups of a table, each as it was given to ``to_table``, bit for bit."""
    names = [name for name in table.column_names if name not in _ARRAYS]
    columns = {name: table.column(name).to_pylist() for name in names}
    arrays = {name: _arrays(table.column(name), dtype) for name, dtype in _ARRAYS.items()}
    judged = []
    for group_id, rows in itertools.groupby(
        range(table.num_rows), key=columns["group_id"].__getitem__
    ):
        row = list(rows)
        first = row[0]
        advantages = [columns["advantage"][i] for i in row]
        group = Group(
            id=group_id,
            attempt=columns["attempt"][first],
            prompt=Prompt(
                id=columns["prompt_id"][first],
                tokens=np.array(columns["prompt_tokens"][first], np.int32),
                text=columns["prompt"][first],
                reference=columns["reference"][first],
            ),
            rollouts=tuple(
                Rollout(
                    group_id=group_id,
                    index=columns["sample"][i],
                    seed=columns["seed"][i],
                    finish_reason=cast(FinishReason, columns["finish_reason"][i]),
                    worker=columns["worker"][i],
                    text=columns["completion"][i],
                    reward=columns["reward"][i],
                    reward_parts=tuple(columns["reward_parts"][i]),
                    reward_error=columns["reward_error"][i],
                    **{name: arrays[name][i] for name in _ARRAYS},
                )
                for i in row
            ),
            advantages=None if None in advantages else np.array(advantages, np.float64),
            measured_pass_rate=columns["measured_pass_rate"][first],
        )
        judged.append((group, columns["rejected"][first]))
    return judged


def _arrays(column: pa.ChunkedArray, dtype: str) -> list[np.ndarray]:
    whole = column.combine_chunks()
    # Not to_numpy, which imports pandas: seconds for a command that only reads.
    values = np.from_dlpack(whole.flatten()).astype(dtype, copy=False)
    ends = np.cumsum(np.from_dlpack(whole.value_lengths()))
    return np.split(values, ends[:-1]) if len(ends) else []


def to_parquet(step: int, rows: pa.Table) -> bytes:
    """``rows`` of ``to_table`` with their step, as a file's content."""
    steps = pa.array(np.full(rows.num_rows, step, np.int64))
    sink = pa.BufferOutputStream()
    # Neither statistics nor dictionaries: they cost more than they save in files this small.
    pq.write_table(
        rows.combine_chunks().add_column(0, SCHEMA.field(0), steps),
        sink,
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
    )
    return sink.getvalue().to_pybytes()


def from_parquet(data: bytes, source: str) -> list[ScoredGroup]:
    """What ``to_parquet`` made.

    Raises:
      RlaxError: damaged, or no such file; names ``source``.
    """
    try:
        return from_table(pq.ParquetFile(pa.BufferReader(data)).read())
    except (pa.ArrowException, LookupError, ValueError) as error:
        raise RlaxError(f"{source} is damaged: {error}") from error


def to_arrow(rows: pa.Table) -> bytes:
    """Arrow's own format: quicker to write than Parquet, for what is soon written again."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_arrow(data: bytes) -> pa.Table:
    """What ``to_arrow`` made."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
