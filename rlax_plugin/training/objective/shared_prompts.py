"""Rows in which the samples of a group share their prompt: where they lie, and who attends to whom.

Such a row holds a prompt once, and behind it its answers, each of which attends to the prompt and
to itself. The prompt here ends before its last token: that token is the input from which the first
token of an answer is predicted, so each answer begins with a copy of it. So ``targets`` are one
token ahead of ``inputs`` everywhere, positions of every answer continue those of the prompt, and
the log-probs are those of rows with one sample each.

    inputs                a b c | d x y | d z | 0     the prompt a b c d, answers x y u and z w
    targets               b c d | x y u | z w | 0
    inputs_position       0 1 2 | 3 4 5 | 3 4 | 0
    prompt, answer        1 0   | 1 1   | 1 2 | 0 0   of the inputs, in ``inputs_segmentation``
    targets_segmentation  0 0 0 | 1 1 1 | 2 2 | 0

A token attends to those before it with its own prompt's number that are of the prompt (answer 0)
or of its own answer. Numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rlax_plugin.base.types import ScoredGroup
from rlax_plugin.training.objective.spans import Spans

ANSWER = 2**16
"""``inputs_segmentation`` is the prompt's number in its row + ``ANSWER`` x the answer's.

Both count from 1; the prompt's own tokens have answer 0. So the numbers of rows without shared
prompts, which are below, say that every sequence sees itself alone.
"""


def seen_by(segments_t: np.ndarray, t: int) -> np.ndarray:
    """Returns the positions that a position attends to, itself included, as a bool array [length].

    Args:
      segments_t: ``inputs_segmentation`` of one row, of any layout.
      t: the position.
    """
    answers_t, prompts_t = np.divmod(segments_t, ANSWER)
    own_t = (answers_t == 0) | (answers_t == answers_t[t])
    return own_t & (prompts_t == prompts_t[t]) & (np.arange(segments_t.size) <= t)


class Branch(NamedTuple):
    """The size of one sequence.

    Attributes:
      positions: those that it takes alone in a row, see ``batches.sizes``.
      prompt: number of its prompt in its group; sequences with equal numbers can share it.
      shared: positions of the prompt: all but its last.
    """

    positions: int
    prompt: int
    shared: int


class SharedPrompt(NamedTuple):
    """A prompt in a row.

    Attributes:
      row, start: its first position.
      count: number of its positions, from 0.
      number: its number in the row, from 1.
      sequences: indices of the sequences that share it, in the batch.
    """

    row: int
    start: int
    count: int
    number: int
    sequences: tuple[int, ...]


class SharedLayout(NamedTuple):
    """The places of the sequences of a batch.

    Attributes:
      places: (row, first position, segment) of each sequence, in order. The first position is the
        one that it would have if the prompt were directly before its own part.
      prompts: all prompts, in any order.
    """

    places: list[tuple[int, int, int]]
    prompts: list[SharedPrompt]


def branches(group: ScoredGroup) -> tuple[Branch, ...]:
    """Returns the sizes of the sequences of a group, in order."""
    numbers: dict[bytes, int] = {}
    found = []
    for episode in group.episodes:
        for trajectory in episode.trajectories:
            prompt = trajectory.turns[0].given
            number = numbers.setdefault(prompt.tobytes(), len(numbers))
            found.append(Branch(trajectory.length - 1, number, max(0, prompt.size - 1)))
    return tuple(found)


def place_shared(
    groups: Sequence[Sequence[Branch]], rows: int, length: int, sequences_per_row: int
) -> SharedLayout | None:
    """Places the sequences of groups in rows, those with the same prompt side by side.

    Sequences with the same prompt are divided, in order, into parts that fit into a row. Then the
    parts are placed undivided: first-fit decreasing, equal ones in order.

    Args:
      groups: the sequences of each group.
      rows, length, sequences_per_row: see ``placing.place``.

    Returns:
      The places, whose segments count from 1 in each row; None if the sequences do not fit.
    """
    parts = _parts(groups, length, sequences_per_row)
    order = sorted(parts, key=lambda part: -part.size)  # a stable sort
    used_b, held_b, prompts_b = [0] * rows, [0] * rows, [0] * rows
    open_rows = list(range(rows))
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * sum(map(len, groups))
    prompts: list[SharedPrompt] = []
    for part in order:
        row = next(
            (
                row
                for row in open_rows
                if used_b[row] + part.size <= length
                and held_b[row] + len(part.own) <= sequences_per_row
            ),
            None,
        )
        if row is None:
            return None
        prompts_b[row] += 1
        indices = tuple(part.own)
        prompts.append(SharedPrompt(row, used_b[row], part.shared, prompts_b[row], indices))
        end = used_b[row] + part.shared
        for index, own in part.own.items():
            held_b[row] += 1
            places[index] = (row, end - part.shared, held_b[row])
            end += own
        used_b[row] = end
        if held_b[row] == sequences_per_row:
            open_rows.remove(row)
    return SharedLayout(places, prompts)


class _Part(NamedTuple):
    """Sequences with one prompt that lie in one row: index -> number of own positions."""

    shared: int
    own: dict[int, int]

    @property
    def size(self) -> int:
        return self.shared + sum(self.own.values())


def _parts(groups: Sequence[Sequence[Branch]], length: int, sequences_per_row: int) -> list[_Part]:
    """Divides the sequences of each prompt into parts that fit into a row."""
    found: list[_Part] = []
    index = 0
    for group in groups:
        last: dict[int, _Part] = {}
        for branch in group:
            own, part = branch.positions - branch.shared, last.get(branch.prompt)
            if part is None or len(part.own) == sequences_per_row or part.size + own > length:
                part = last[branch.prompt] = _Part(branch.shared, {})
                found.append(part)
            part.own[index] = own
            index += 1
    return found


def write_tokens(
    arrays: dict[str, np.ndarray],
    tokens: np.ndarray,
    sizes_n: Sequence[Branch],
    layout: SharedLayout,
) -> None:
    """Writes the tokens of all sequences, their positions and their segments.

    Args:
      arrays: MaxText's six arrays, whose padding is written; changed in place.
      tokens: int, the tokens of all sequences in order; each has one more than its positions.
      sizes_n: their sizes.
      layout: their places.
    """
    length = arrays["inputs"].shape[1]
    positions_n, _, shared_n = np.array(sizes_n, np.int64).reshape(-1, 3).T
    rows_n, starts_n, segments_n = np.array(layout.places, np.int64).reshape(-1, 3).T
    begins_n = np.cumsum(positions_n + 1) - positions_n - 1  # places in ``tokens``
    prompt_n = np.zeros_like(rows_n)
    for prompt in layout.prompts:
        prompt_n[list(prompt.sequences)] = prompt.number

    own = Spans(rows_n, starts_n + shared_n, positions_n - shared_n, length)
    within = own.each(shared_n) + own.within
    _write(arrays, own, tokens, own.each(begins_n) + within, within)
    own.write(arrays["inputs_segmentation"], own.each(prompt_n + ANSWER * segments_n))
    own.write(arrays["targets_segmentation"], own.each(segments_n))

    first_n = [prompt.sequences[0] for prompt in layout.prompts]
    row_n, start_n, count_n, number_n = np.array([p[:4] for p in layout.prompts], np.int64).T
    whole = Spans(row_n, start_n, count_n, length)
    at = whole.each(begins_n[first_n]) + whole.within
    _write(arrays, whole, tokens, at, whole.within)
    whole.write(arrays["inputs_segmentation"], whole.each(number_n))


def _write(
    arrays: dict[str, np.ndarray],
    spans: Spans,
    tokens: np.ndarray,
    at: np.ndarray,
    positions: np.ndarray,
) -> None:
    """Writes inputs, the targets behind them, and positions; ``at``: place of each input token."""
    for side, ahead in (("inputs", 0), ("targets", 1)):
        spans.write(arrays[side], tokens[at + ahead])
        spans.write(arrays[f"{side}_position"], positions)
