"""Reads groups of episodes from the rows that ``run/state/samples.py`` writes, bit for bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.base.endings import Ending
from rlax_plugin.base.errors import RlaxError
from rlax_plugin.base.types import (
    EMPTY,
    Episode,
    Judged,
    Prompt,
    Rejected,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
    Turn,
    Unscored,
    group_of,
)
from rlax_plugin.run.state.samples import OPTIONAL, SCHEMA, SIDE

_ARRAYS = {"given": "<i4", "tokens": "<i4", "logprobs": "<f4", "versions": "<i4"}

_NONE = np.zeros(0, np.int32)

_LARGE = 4 << 20
"""Bytes of a file from which on threads read it sooner than one; starting them costs a third."""


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A group as it was recorded in a file.

    Attributes:
      advantages: see ``TrainBatch``; None for a group that has not trained.
      repeats: see ``TrainBatch``; None for a group that has not trained, or without a selection.
    """

    judged: Judged
    advantages: np.ndarray | None
    repeats: np.ndarray | None = None

    @property
    def group(self) -> ScoredGroup:
        return group_of(self.judged)


def as_batch(step: int, recorded: Sequence[RecordedGroup]) -> TrainBatch:
    """Returns the batch of a step, made of the groups that trained."""
    trained = [(one.group, one.advantages) for one in recorded if one.advantages is not None]
    groups, advantages = zip(*trained, strict=True) if trained else ((), ())
    repeats = tuple(one.repeats for one in recorded if one.repeats is not None)
    return TrainBatch(step, groups, advantages, repeats)


def rows_of(data: bytes, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Returns the rows of a file of samples; missing values are null.

    Args:
      name: name of the file below the run's directory.
      columns: columns to read; None: all, including side channels.

    Raises:
      RlaxError: the file is damaged, or not a file of samples.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        there, wanted = file.schema_arrow.names, columns or SCHEMA.names
        if lacking := set(SCHEMA.names) - OPTIONAL - set(there):
            raise ValueError(f"it has no column {min(lacking)}")
        chosen = None if columns is None else [n for n in columns if n in there]
        table = file.read(chosen, use_threads=len(data) > _LARGE)
        for field in (SCHEMA.field(n) for n in wanted if n not in there):
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
        return table
    except (pa.ArrowException, LookupError, ValueError) as error:
        raise RlaxError(f"{name} is damaged: {error}") from error


def from_table(table: pa.Table) -> list[RecordedGroup]:
    """Returns the groups of a table, each as it was given to ``to_table`` or ``of_batch``.

    Raises:
      LookupError, ValueError, TypeError: the rows are inconsistent.
    """
    return list(_Rows(table).groups())


def _arrays(column: pa.ChunkedArray, dtype: str) -> list[np.ndarray]:
    whole = column.combine_chunks()
    # Not to_numpy, which imports pandas: seconds for a command that only reads.
    values = np.from_dlpack(whole.flatten()).astype(dtype, copy=False)
    ends = np.cumsum(np.from_dlpack(whole.value_lengths().fill_null(0))).tolist()
    return [values[begin:end] for begin, end in itertools.pairwise([0, *ends])]


class _Rows:
    """The columns of a table, with methods that combine rows into objects."""

    def __init__(self, table: pa.Table):
        self._side = [
            name.removeprefix(SIDE)
            for name in table.column_names
            if name.startswith(SIDE) and not name.endswith(":lengths")
        ]
        flat = {*_ARRAYS, *(SIDE + name for name in self._side)}
        self._columns = {
            n: table.column(n).to_pylist() for n in table.column_names if n not in flat
        }
        self._arrays = {name: _arrays(table.column(name), dtype) for name, dtype in _ARRAYS.items()}
        self._trailing: dict[str, Sequence[int]] = {}
        for name in self._side:
            field = table.schema.field(SIDE + name)
            dtype = np.dtype(field.type.value_type.to_pandas_dtype())
            self._arrays[SIDE + name] = _arrays(table.column(SIDE + name), dtype.str)
            self._trailing[name] = json.loads((field.metadata or {}).get(b"trailing", b"[]"))
        self._count = table.num_rows

    def groups(self) -> Iterator[RecordedGroup]:
        of_row = self._columns["group"]
        for group_id, rows in itertools.groupby(range(self._count), key=of_row.__getitem__):
            yield self._group(group_id, list(rows))

    def _group(self, group_id: int, rows: list[int]) -> RecordedGroup:
        one, first = self._columns, rows[0]
        of_sample = one["sample"]
        of_episodes = [list(r) for _, r in itertools.groupby(rows, key=of_sample.__getitem__)]
        episodes = tuple(map(self._episode, of_episodes))
        turns = (t for e in episodes for one in e.trajectories for t in one.turns)
        given = next((turn.given for turn in turns), _NONE)
        apart = one["prompt_tokens"][first]
        group = ScoredGroup(
            id=group_id,
            attempt=one["attempt"][first],
            prompt=Prompt(
                id=one["prompt_id"][first],
                tokens=given if apart is None else np.array(apart, np.int32),
                text=one["prompt"][first],
                reference=one["reference"][first],
                metadata=_mapping(one["metadata"][first]),
            ),
            episodes=episodes,
            scores=tuple(map(self._score, of_episodes)),
            pass_rate_before=one["pass_rate_before"][first],
            temperature=one["temperature"][first],
        )
        advantages = repeats = None
        if one["state"][first] == "trained":
            advantages = self._advantages(of_episodes)
            if one["repeats"][first] is not None:
                of_each = [one["repeats"][own[0]] for own in of_episodes]
                repeats = np.array(of_each, np.int32)
        reason = one["rejected"][first]
        judged = group if one["state"][first] != "rejected" else Rejected(group, str(reason))
        return RecordedGroup(judged, advantages, repeats)

    def _advantages(self, of_episodes: list[list[int]]) -> np.ndarray:
        by_token = self._columns["token_advantages"]
        if by_token[of_episodes[0][0]] is None:
            whole = self._columns["advantage"]
            return np.array([whole[rows[0]] for rows in of_episodes], np.float64)
        found = [np.concatenate([by_token[row] or () for row in rows]) for rows in of_episodes]
        advantages = np.zeros((len(found), max(map(len, found))))
        for own, values in zip(advantages, found, strict=True):
            own[: len(values)] = values
        return advantages

    def _episode(self, rows: list[int]) -> Episode:
        one, first = self._columns, rows[0]
        return Episode(
            index=one["sample"][first],
            trajectories=tuple(map(self._trajectory, filter(one["seeds"].__getitem__, rows))),
            text=one["completion"][first],
            ended=Ending(one["ended"][first] or Ending.DONE),
            texts=tuple(one["texts"][first] or ()),
            order=self._order(rows),
            demonstration=bool(one["demonstration"][first]),
        )

    def _order(self, rows: list[int]) -> tuple[int, ...]:
        order = [place for row in rows for place in self._columns["turn_order"][row] or ()]
        turns = sum(len(self._columns["finish"][row]) for row in rows)
        if order and sorted(order) != list(range(turns)):
            raise ValueError(f"turn_order is {order}: each of {turns} turns has a place of its own")
        return tuple(order)

    def _trajectory(self, row: int) -> Trajectory:
        one = self._columns
        sampled = self._split("sampled_lengths", row, "tokens", "logprobs", "versions")
        (given,) = self._split("given_lengths", row, "given")
        seeds, finish, names = one["seeds"][row], one["finish"][row], iter(one["workers"][row])
        counts = one["worker_counts"][row] or [len(one["workers"][row])]
        sides = [dict[str, np.ndarray]() for _ in seeds]
        for name in self._side:
            self._add_side(name, row, sides)
        turns = []
        for index, (before, tokens, logprobs, versions) in enumerate(
            zip(given, *sampled, strict=True)
        ):
            workers = tuple(itertools.islice(names, counts[index]))
            side = sides[index] or EMPTY
            turn = Sampled(seeds[index], tokens, logprobs, versions, finish[index], workers, side)
            turns.append(Turn(before, turn))
        return Trajectory(tuple(turns))

    def _split(self, lengths: str, row: int, *names: str) -> list[list[np.ndarray]]:
        """Returns the parts of a row's arrays that belong to its turns, for each of ``names``."""
        found = [self._arrays[name][row] for name in names]
        counts = self._columns[lengths][row]
        if counts is None:
            return [[array] for array in found]
        ends = np.cumsum(counts)
        if any(len(array) != ends[-1] for array in found):
            raise ValueError(f"{lengths} are {counts} of {[len(array) for array in found]} tokens")
        return [np.split(array, ends[:-1]) for array in found]

    def _add_side(self, name: str, row: int, sides: list[dict[str, np.ndarray]]) -> None:
        counts = self._columns[f"{SIDE}{name}:lengths"][row]
        if counts is None:
            return
        flat = self._arrays[SIDE + name][row].reshape(-1, *self._trailing[name])
        for side, array in zip(sides, np.split(flat, np.cumsum(counts)[:-1]), strict=True):
            side[name] = array

    def _score(self, rows: list[int]) -> Score | Unscored:
        one, first = self._columns, rows[0]
        ending = Ending(one["ending"][first])
        if (reason := one["reward_error"][first]) is not None:
            return Unscored(reason, ending)
        token_rewards: list[np.ndarray] = []
        for row in rows:
            if (flat := one["token_rewards"][row]) is not None:
                lengths = one["sampled_lengths"][row] or [len(flat)]
                token_rewards += np.split(np.array(flat, np.float64), np.cumsum(lengths)[:-1])
        return Score(
            total=one["reward"][first],
            parts=tuple(one["reward_parts"][first]),
            metrics=_mapping(one["reward_metrics"][first]),
            token_rewards=tuple(token_rewards),
            ending=ending if ending.by_reward else None,
        )


def _mapping(text: str | None) -> Any:
    return EMPTY if text is None else json.loads(text)
