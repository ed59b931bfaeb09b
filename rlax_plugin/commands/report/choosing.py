"""Which groups of a run are put on the page, when they are more than a page should hold."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from rlax_plugin.errors import RlaxError
from rlax_plugin.records import samples
from rlax_plugin.records.files import RunFiles

MAX_ROLLOUTS = 10_000
MAX_BYTES = 7_300_000  # of rollouts, as estimated below; with plotly's 2 MB a page of 10 MB

# What a token (its id and log-prob, as good as random) and a character of text add to the page,
# compressed and in base64: somewhat more than was measured.
_BYTES_PER_TOKEN, _BYTES_PER_CHARACTER, _BYTES_PER_ROLLOUT = 6.2, 0.65, 30
_PAIRS_SHARE = 0.25
_GOLDEN = 0.6180339887498949

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


def fits(group: GroupAt, max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES) -> bool:
    """Whether there is room for a group, were it alone."""
    return group.samples <= max_rollouts and group.size <= max_bytes


def choose(
    groups: Sequence[GroupAt], max_rollouts: int = MAX_ROLLOUTS, max_bytes: float = MAX_BYTES
) -> list[GroupAt]:
    """As many groups as fit, the steps evenly represented.

    A quarter of the room is for the first and the last group of prompts that were asked again
    late, so that early and late answers to one prompt can be compared. Groups that would not fit
    alone are passed over.
    """
    groups = [group for group in groups if fits(group, max_rollouts, max_bytes)]
    chosen: dict[int, GroupAt] = {}
    rollouts, size = 0, 0.0

    def take(group: GroupAt, share: float) -> bool:
        nonlocal rollouts, size
        if group.group in chosen:
            return True
        if rollouts + group.samples > share * max_rollouts or size + group.size > share * max_bytes:
            return False
        chosen[group.group] = group
        rollouts, size = rollouts + group.samples, size + group.size
        return True

    if sum(g.samples for g in groups) > max_rollouts or sum(g.size for g in groups) > max_bytes:
        for first, last in _pairs(groups):
            if not (take(first, _PAIRS_SHARE) and take(last, _PAIRS_SHARE)):
                break
    for group in _evenly(groups):
        if not take(group, 1.0):
            break
    return sorted(chosen.values(), key=lambda g: (g.step, g.group))


def _pairs(groups: Sequence[GroupAt]) -> list[tuple[GroupAt, GroupAt]]:
    """First and last group of each prompt that has two, those furthest apart first."""
    of_prompt: dict[str, list[GroupAt]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: (g.step, g.group)):
        of_prompt[group.prompt_id].append(group)
    pairs = [(found[0], found[-1]) for found in of_prompt.values() if len(found) > 1]
    return sorted(pairs, key=lambda pair: pair[0].step - pair[1].step)


def _evenly(groups: Sequence[GroupAt]) -> list[GroupAt]:
    """An order of which every beginning is spread evenly over the steps.

    Steps take turns; multiples of the golden ratio, modulo 1, order them and the groups of each.
    """
    of_step: dict[int, list[GroupAt]] = defaultdict(list)
    for group in sorted(groups, key=lambda g: g.group * _GOLDEN % 1):
        of_step[group.step].append(group)
    turns = [
        (turn, step * _GOLDEN % 1, group)
        for step, found in of_step.items()
        for turn, group in enumerate(found)
    ]
    return [group for _, _, group in sorted(turns, key=lambda t: t[:2])]
