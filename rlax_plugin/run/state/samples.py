"""Groups of episodes as Parquet: readable by people and exact for machines.

There is one row per trajectory, and one for an episode without any, in flat columns, since a nested
column would need more than one copy. Values per turn (length, finish) are short lists; values per
token are one list per row, over all of its turns. ``OPTIONAL`` columns are left out of a file if no
row has a value. Each side channel has its own column.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.base.types import (
    Episode,
    Judged,
    Rejected,
    Score,
    TrainBatch,
    Trajectory,
    Turn,
    group_of,
)

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),  # the step it trains at, or that was next when it was scored
        ("state", pa.string()),  # trained, accepted or rejected
        ("group", pa.int64()),
        ("attempt", pa.int32()),
        ("sample", pa.int32()),
        ("trajectory", pa.int32()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("prompt_tokens", pa.list_(pa.int32())),  # null where they are what was given first
        ("reference", pa.string()),
        ("metadata", pa.string()),  # JSON
        ("completion", pa.string()),  # what rewards read
        ("texts", pa.list_(pa.string())),  # of several turns: given, sampled, given, ...
        ("ended", pa.string()),  # null: done
        ("ending", pa.string()),  # of the sample with its reward, see ``Ending``
        ("demonstration", pa.bool_()),  # null: the policy sampled it
        ("turn_order", pa.list_(pa.int32())),  # see Episode.order; null: as the rows have them
        ("given", pa.list_(pa.int32())),
        ("given_lengths", pa.list_(pa.int32())),  # of each turn; null: one turn
        ("tokens", pa.list_(pa.int32())),
        ("sampled_lengths", pa.list_(pa.int32())),  # of each turn; null: one turn
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("seeds", pa.list_(pa.uint64())),  # of each turn
        ("finish", pa.list_(pa.string())),  # of each turn
        ("workers", pa.list_(pa.string())),
        ("worker_counts", pa.list_(pa.int32())),  # of each turn; null: one turn
        ("reward", pa.float64()),  # null where scoring failed
        ("reward_parts", pa.list_(pa.float64())),  # of each of rlax.rewards; empty if it failed
        ("reward_metrics", pa.string()),  # JSON
        ("token_rewards", pa.list_(pa.float64())),
        ("reward_error", pa.string()),
        ("advantage", pa.float64()),  # null outside of batches; without KL in the reward
        ("token_advantages", pa.list_(pa.float64())),
        ("repeats", pa.int32()),  # rows of it in its batch; null outside, or without a selection
        ("pass_rate_before", pa.float64()),  # null where the prompt was new
        ("temperature", pa.float64()),  # null where rlax.rollouts.temperature is a number
        ("rejected", pa.string()),  # why; null where the group was accepted
    ]
)
OPTIONAL = frozenset(
    (
        *("prompt_tokens", "metadata", "texts", "ended", "demonstration", "turn_order"),
        *("given_lengths", "sampled_lengths", "worker_counts"),
        *("reward_metrics", "token_rewards", "reward_error"),
        *("advantage", "token_advantages", "repeats"),
        *("pass_rate_before", "temperature", "rejected"),
    )
)
SIDE = "side:"  # before a side channel's name, in the name of its column

_OFFSETS, _I32, _F32 = np.int32, np.dtype("<i4"), np.dtype("<f4")


def _offsets(lengths: Iterable[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=_OFFSETS)


def _lists(arrays: Sequence[np.ndarray], offsets: np.ndarray, dtype: np.dtype) -> pa.ListArray:
    """Returns rows of different lengths, with one copy instead of a Python object per element."""
    values = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    return pa.ListArray.from_arrays(offsets, values.astype(dtype, copy=False))


def to_table(judged: Sequence[Judged]) -> pa.Table:
    """Returns one row per trajectory, groups in order, in ``SCHEMA``'s columns except ``step``."""
    return _table(judged, ["rejected" if isinstance(j, Rejected) else "accepted" for j in judged])


def of_batch(batch: TrainBatch) -> pa.Table:
    """Returns ``to_table`` of the groups of a batch, with their advantages and repeats."""
    advantages, repeats = list(chain(*batch.advantages)), list(chain(*batch.repeats))
    return _table(batch.groups, ["trained"] * len(batch.groups), advantages, repeats)


def _table(
    judged: Sequence[Judged],
    states: Sequence[str],
    advantages: Sequence[np.ndarray] | None = None,
    repeats: Sequence[int] = (),
) -> pa.Table:
    groups = [group_of(one) for one in judged]
    episodes = [e for g in groups for e in g.episodes]
    scores = [s for g in groups for s in g.scores]
    trajectories = [t for e in episodes for t in _rows(e)]
    turns = [turn for t in trajectories for turn in t.turns]
    samples = [turn.sampled for turn in turns]
    row_episode = np.repeat(np.arange(len(episodes)), [len(_rows(e)) for e in episodes])
    of_episode = np.repeat(np.arange(len(groups)), [len(g.episodes) for g in groups])
    row_group = of_episode[row_episode]

    def group_column(name: str, values: Sequence[Any]) -> pa.Array:
        return pa.array(values, SCHEMA.field(name).type).take(pa.array(row_group))

    def episode_column(name: str, values: Sequence[Any]) -> pa.Array:
        column = pa.array(values, SCHEMA.field(name).type)
        same = len(trajectories) == len(episodes)
        return column if same else column.take(pa.array(row_episode))

    scored = [s if isinstance(s, Score) else None for s in scores]
    columns: dict[str, Any] = {
        name: group_column(name, values)
        for name, values in {
            "state": states,
            "group": [g.id for g in groups],
            "attempt": [g.attempt for g in groups],
            "prompt_id": [g.prompt.id for g in groups],
            "prompt": [g.prompt.text for g in groups],
            "prompt_tokens": [_tokens_apart(g.prompt.tokens, g.episodes) for g in groups],
            "reference": [g.prompt.reference for g in groups],
            "metadata": [_json(g.prompt.metadata) for g in groups],
            "pass_rate_before": [g.pass_rate_before for g in groups],
            "temperature": [g.temperature for g in groups],
            "rejected": [one.reason if isinstance(one, Rejected) else None for one in judged],
        }.items()
    } | {
        name: episode_column(name, values)
        for name, values in {
            "sample": [e.index for e in episodes],
            "completion": [e.text for e in episodes],
            "texts": [e.texts or None for e in episodes],
            "ended": [None if e.ended == "done" else e.ended for e in episodes],
            "demonstration": [e.demonstration or None for e in episodes],
            "ending": [ending for g in groups for ending in g.endings],
            "reward": [s and s.total for s in scored],
            "reward_parts": [s.parts if s else () for s in scored],
            "reward_metrics": [s and _json(s.metrics) for s in scored],
            "reward_error": [None if isinstance(s, Score) else s.reason for s in scores],
            "advantage": [float(a) if a.ndim == 0 else None for a in advantages]
            if advantages
            else [None] * len(episodes),
            "repeats": repeats or [None] * len(episodes),
        }.items()
    }
    columns["trajectory"] = [n for e in episodes for n in range(len(_rows(e)))]
    columns["turn_order"] = list(_turn_order(episodes))
    columns["token_rewards"] = list(_token_rewards(episodes, scored))
    columns["token_advantages"] = _token_advantages(episodes, advantages)
    columns |= _turn_columns(trajectories, turns)
    sampled_lengths = [sum(len(t.sampled.tokens) for t in one.turns) for one in trajectories]
    ends = _offsets(sampled_lengths)
    for name, dtype in (("tokens", _I32), ("logprobs", _F32), ("versions", _I32)):
        columns[name] = _lists([getattr(s, name) for s in samples], ends, dtype)
    given = _offsets(sum(len(t.given) for t in one.turns) for one in trajectories)
    columns["given"] = _lists([turn.given for turn in turns], given, _I32)
    schema = SCHEMA.remove(0)
    table = pa.table([columns[f.name] for f in schema], schema=schema)
    for name in dict.fromkeys(name for s in samples for name in s.side):
        table = _with_side(table, name, trajectories)
    return table


def _rows(episode: Episode) -> Sequence[Trajectory]:
    return episode.trajectories or (Trajectory(()),)


def _tokens_apart(tokens: np.ndarray, episodes: Sequence[Episode]) -> list[int] | None:
    first = next((t.given for e in episodes for one in e.trajectories for t in one.turns), None)
    same = first is tokens or (first is not None and np.array_equal(first, tokens))
    return None if same else tokens.tolist()


def _json(values: Mapping[str, Any]) -> str | None:
    return json.dumps(dict(values)) if values else None


def _turn_order(episodes: Sequence[Episode]) -> Iterable[tuple[int, ...] | None]:
    for episode in episodes:
        order = iter(episode.order)
        for trajectory in _rows(episode):
            yield tuple(next(order) for _ in trajectory.turns) if episode.order else None


def _token_rewards(
    episodes: Sequence[Episode], scores: Sequence[Score | None]
) -> Iterable[list[float] | None]:
    for episode, score in zip(episodes, scores, strict=True):
        of_turns = iter(score.token_rewards if score else ())
        for trajectory in _rows(episode):
            its = [next(of_turns, None) for _ in trajectory.turns]
            found = [np.asarray(one, np.float64) for one in its if one is not None]
            yield np.concatenate(found).tolist() if found else None


def _token_advantages(
    episodes: Sequence[Episode], advantages: Sequence[np.ndarray] | None
) -> list[list[float] | None]:
    found: list[list[float] | None] = []
    for index, episode in enumerate(episodes):
        own, done = None if advantages is None else advantages[index], 0
        for trajectory in _rows(episode):
            count = sum(len(turn.sampled.tokens) for turn in trajectory.turns)
            by_token = None if own is None or own.ndim == 0 else own[done : done + count]
            found.append(None if by_token is None else by_token.tolist())
            done += count
    return found


def _turn_columns(trajectories: Sequence[Trajectory], turns: Sequence[Turn]) -> dict[str, Any]:
    """Returns the columns with a value per turn; the lengths of a single turn are its row's."""
    samples = [turn.sampled for turn in turns]
    ends = _offsets(len(t.turns) for t in trajectories)
    names = _offsets(sum(len(turn.sampled.workers) for turn in t.turns) for t in trajectories)

    def per_turn(length: Callable[[Turn], int]) -> list[list[int] | None]:
        single = (len(t.turns) == 1 for t in trajectories)
        return [
            None if one else [length(turn) for turn in t.turns]
            for one, t in zip(single, trajectories, strict=True)
        ]

    return {
        "seeds": pa.ListArray.from_arrays(ends, pa.array([s.seed for s in samples], pa.uint64())),
        "finish": pa.ListArray.from_arrays(
            ends, pa.array([s.finish for s in samples], pa.string())
        ),
        "workers": pa.ListArray.from_arrays(
            names, pa.array([name for s in samples for name in s.workers], pa.string())
        ),
        "given_lengths": per_turn(lambda turn: len(turn.given)),
        "sampled_lengths": per_turn(lambda turn: len(turn.sampled.tokens)),
        "worker_counts": per_turn(lambda turn: len(turn.sampled.workers)),
    }


def _with_side(table: pa.Table, name: str, trajectories: Sequence[Trajectory]) -> pa.Table:
    """Adds the column of a side channel; arrays are flattened, and the field keeps their shape."""
    found = [[t.sampled.side.get(name) for t in one.turns] for one in trajectories]
    rows = [[a for a in arrays if a is not None] for arrays in found]
    whole = [len(some) == len(arrays) for some, arrays in zip(rows, found, strict=True)]
    counts = [
        [len(a) for a in some] if complete else None
        for some, complete in zip(rows, whole, strict=True)
    ]
    flat = [a for some in rows for a in some]
    first = flat[0]
    kind = pa.list_(pa.from_numpy_dtype(first.dtype))
    ends = _offsets(sum(a.size for a in some) for some in rows)
    column = _lists([a.ravel() for a in flat], ends, first.dtype)
    metadata = {"trailing": json.dumps(first.shape[1:])}
    table = table.append_column(pa.field(SIDE + name, kind, metadata=metadata), column)
    lengths = pa.field(f"{SIDE}{name}:lengths", pa.list_(pa.int32()))
    return table.append_column(lengths, pa.array(counts, lengths.type))


def select(rows: pa.Table, groups: Sequence[int]) -> pa.Table:
    """Returns the rows of some groups, in the order of ``groups``.

    Raises:
      KeyError: a group has no rows.
    """
    ids = rows.column("group").to_numpy()
    starts = np.flatnonzero(np.diff(ids, prepend=-1 - ids[:1]))
    ends = np.append(starts[1:], len(ids))
    spans = {int(ids[a]): np.arange(a, b) for a, b in zip(starts, ends, strict=True)}
    wanted = [spans[group] for group in groups]
    return rows.take(np.concatenate(wanted) if wanted else np.zeros(0, np.int64))


def only(rows: pa.Table, groups: Container[int]) -> pa.Table:
    """Returns the rows of some groups, in their existing order."""
    ids = rows.column("group").to_pylist()
    return rows.filter(pa.array([group in groups for group in ids], pa.bool_()))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the rows of several tables, which may have different side channels."""
    return pa.concat_tables(tables, promote_options="default") if tables else to_table([])


def to_parquet(step: int, rows: pa.Table) -> bytes:
    """Returns the content of a file with ``rows`` of ``to_table`` and their step."""
    empty = [n for n in rows.column_names if rows.column(n).null_count == rows.num_rows]
    rows = rows.drop_columns([name for name in empty if name in OPTIONAL])
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


def to_arrow(rows: pa.Table) -> bytes:
    """Returns rows in Arrow's format, which is faster to write than Parquet, for temporary use."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_arrow(data: bytes) -> pa.Table:
    """Reads the bytes that ``to_arrow`` returned."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
