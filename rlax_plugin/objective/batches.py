"""Builds training batches and decides which tokens train; no other module does.

One trajectory per row, or several if they are packed. With ``sequence`` the given and sampled
tokens of all its turns, ``inputs = sequence[:-1]`` and ``targets = sequence[1:]``; ``rl_*`` at
position t concern ``targets[t]``, and are 0 where that token was given. Numpy only.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.errors import TrainingError
from rlax_plugin.objective.advantages import PAID_AT_TOKENS, REWARD_PARTS
from rlax_plugin.objective.arrays import ArraySpec
from rlax_plugin.types import Episode, Score, ScoredGroup, TrainBatch, Trajectory

_INT32, _FLOAT32 = ArraySpec(np.dtype(np.int32)), ArraySpec(np.dtype(np.float32))

ARRAYS: dict[str, ArraySpec] = {
    # MaxText's own. Segmentation counts a row's sequences from 1 and is 0 on padding; padding
    # attends to padding, so that no attention row is empty, in a row without any sequence either.
    # Positions start at 0 in every sequence.
    "inputs": _INT32,
    "inputs_position": _INT32,
    "inputs_segmentation": _INT32,
    "targets": _INT32,
    "targets_position": _INT32,
    "targets_segmentation": _INT32,
    # The objective's, on sampled tokens (stop token included) of scored episodes, 0 elsewhere.
    # Mask: 1 where a token trains; all of them do, but for ``mask_truncated``.
    "rl_mask": _INT32,
    "rl_advantages": _FLOAT32,
    # log-probability under the sampler (``Sampled.logprobs``), nats.
    "rl_behaviour_logprobs": _FLOAT32,
    # Version that the batch's update produces minus the token's version; 1 is on-policy.
    "rl_staleness": _INT32,
    # The group's place in the batch, from 1, and the number of its samples that have a score.
    "rl_group": _INT32,
    "rl_group_size": _INT32,
    # The sample's index in its group, from 0, and its sampled tokens in all trajectories.
    "rl_sample": _INT32,
    "rl_sample_length": _INT32,
    # All that rewards and environment paid the sample (``Score.total``).
    "rl_total_reward": _FLOAT32,
    # The RL step that the batch trains, from 1.
    "rl_step": _INT32,
}
HOST_ARRAYS: dict[str, ArraySpec] = {
    # For advantages (``advantages.of_batch``); they need not reach a device. On sampled tokens of
    # scored episodes, 0 elsewhere: the episode's place in the batch, from 1, and the reward that it
    # was paid as a whole.
    "rl_episode": _INT32,
    "rl_rewards": ArraySpec(np.dtype(np.float64)),
    # The token's place in time among the sampled tokens of its episode, from 1: trajectories lie in
    # different rows, in any order, and an environment may go from one to another and back.
    "rl_place": _INT32,
    # 1 on these tokens if their episode was cut at a limit.
    "rl_truncated": _INT32,
    # The turn that the token belongs to, in the order in which turns were answered, from 1.
    "rl_turn": _INT32,
}
TEMPERATURE = "rl_temperature"
"""float32, the temperature at which a token was sampled; 1 where none was.

Only in the batches of a run whose ``rlax.rollouts.temperature`` is a schedule.
"""
TOKEN_REWARDS = "rl_token_rewards"
"""float64, reward given at a token.

Only in a batch that has such rewards, together with ``PAID_AT_TOKENS``.
"""


def device_arrays(section: RlaxSection) -> dict[str, ArraySpec]:
    """Returns name -> spec of the arrays of a run's batches that the loss gets.

    ``ARRAYS``, and ``REWARD_PARTS`` and ``TEMPERATURE`` if the run has them.
    """
    parts = len(section.rewards)
    found = ARRAYS | ({REWARD_PARTS: ArraySpec(np.dtype(np.float32), (parts,))} if parts else {})
    return (
        found if section.rollouts.only_temperature is not None else found | {TEMPERATURE: _FLOAT32}
    )


def temperature_of(data: Mapping[str, Any], only: float | None) -> Any:
    """Returns the divisor of the logits: a number, or [rows, length], one for each token.

    Args:
      data: arrays of a batch.
      only: ``Rollouts.only_temperature``.
    """
    return data[TEMPERATURE] if only is None else only


def sizes(groups: Sequence[ScoredGroup]) -> list[int]:
    """Returns the positions that each trajectory takes in a row: one less than its tokens."""
    return [t.length - 1 for g in groups for episode in g.episodes for t in episode.trajectories]


def place(
    sizes: Sequence[int], rows: int, length: int, sequences_per_row: int
) -> list[tuple[int, int, int]] | None:
    """Places every sequence undivided in a row: first-fit decreasing, equal ones in order.

    The first row with room takes a sequence, the longest first. With one sequence per row the order
    does not matter: sequence i lies in row i.

    Args:
      sizes: positions of each sequence, from 1.
      rows: number of rows.
      length: positions of a row.
      sequences_per_row: largest number of sequences in one row.

    Returns:
      (row, first position, segment) of each sequence in the order of ``sizes``; segments count
      from 1 in each row. None if they do not fit.
    """
    if sequences_per_row == 1:
        if len(sizes) > rows or max(sizes, default=0) > length:
            return None
        return [(row, 0, 1) for row in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda sample: -sizes[sample])  # a stable sort
    rooms = _Rooms(rows, length)
    held_b = [0] * rows  # samples
    places: list[tuple[int, int, int]] = [(0, 0, 0)] * len(sizes)
    for sample in order:
        row = rooms.first(size := sizes[sample])
        if row is None:
            return None
        held_b[row] += 1
        room = rooms.of(row)
        places[sample] = (row, length - room, held_b[row])
        rooms.set(row, room - size if held_b[row] < sequences_per_row else _FULL)
    return places


_FULL = -sys.maxsize  # the room of a row with all of its samples


class _Rooms:
    """Free positions of rows, in a tree of maxima: the first row with room is found in log time."""

    def __init__(self, rows: int, length: int):
        self._leaves = 1 << max(0, rows - 1).bit_length()
        self._tree = [length] * (self._leaves + rows) + [_FULL] * (self._leaves - rows)
        for node in range(self._leaves - 1, 0, -1):
            self._tree[node] = max(self._tree[2 * node : 2 * node + 2])

    def of(self, row: int) -> int:
        return self._tree[self._leaves + row]

    def first(self, size: int) -> int | None:
        """Returns the first row with ``size`` free positions; None if no row has them."""
        tree, node = self._tree, 1
        if tree[node] < size:
            return None
        while node < self._leaves:
            node *= 2
            if tree[node] < size:
                node += 1
        return node - self._leaves

    def set(self, row: int, room: int) -> None:
        tree, node = self._tree, self._leaves + row
        tree[node] = room
        while node > 1:
            node //= 2
            largest = max(tree[2 * node], tree[2 * node + 1])
            if tree[node] == largest:
                return
            tree[node] = largest


def arrays_of(
    section: RlaxSection, algorithm: Algorithm, batch: TrainBatch
) -> dict[str, np.ndarray]:
    """Returns a batch laid out as a config says; see ``build_arrays``.

    Args:
      section: the config.
      algorithm: the objective's, preset and config merged.
      batch: the batch.
    """
    return build_arrays(
        batch,
        rows=section.batch_rows,
        length=section.row_tokens,
        sequences_per_row=section.batches.sequences_per_row,
        mask_truncated=algorithm.mask_truncated,
        reward_parts=len(section.rewards),
        temperatures=section.rollouts.only_temperature is None,
    )


def build_arrays(
    batch: TrainBatch,
    *,
    rows: int,
    length: int,
    pad_id: int = 0,
    sequences_per_row: int = 1,
    mask_truncated: bool = False,
    reward_parts: int = 0,
    temperatures: bool = False,
) -> dict[str, np.ndarray]:
    """Lays out the trajectories of a batch by ``place``: ``ARRAYS`` and ``HOST_ARRAYS``.

    Episodes without a score keep their place with a mask of 0. Everything else is padding.

    Args:
      batch: the batch.
      rows: rows of every array.
      length: tokens of every row; a trajectory needs one less than it has.
      pad_id: token of padding in ``inputs`` and ``targets``.
      sequences_per_row: largest number of sequences in one row.
      mask_truncated: if True, truncated episodes train no token; their rewards count.
      reward_parts: number of rewards of the config; above 0, ``REWARD_PARTS`` is added.
      temperatures: if True, each group has a temperature, and the arrays have ``TEMPERATURE``.

    Raises:
      TrainingError: a trajectory is too long, has an empty turn, is from a version that cannot be
        in use yet, or has advantages or log-probabilities that are missing or not finite;
        trajectories that do not fit; a group without a temperature above 0.
    """
    step, groups = batch.step, batch.groups
    if len(batch.advantages) != len(groups):
        raise TrainingError(
            f"step {step}: {len(groups)} groups with advantages for {len(batch.advantages)}"
        )
    for group, advantages in zip(groups, batch.advantages, strict=True):
        if not len(advantages) == len(group.episodes) == len(group.scores):
            raise TrainingError(f"step {step}: group {group.id} lacks an advantage per sample")
        if temperatures and not (group.temperature or 0) > 0:
            raise TrainingError(
                f"step {step}: group {group.id} has the temperature {group.temperature}, expected "
                "one above 0, at which its samples were generated"
            )
        for episode, score, advantage in zip(group.episodes, group.scores, advantages, strict=True):
            where = f"step {step}: sample {episode.index} of group {group.id}"
            for trajectory in episode.trajectories:
                _check_laid_out(where, trajectory, length)
            if isinstance(score, Score):
                _check_trained(where, episode, advantage, step)
    sizes_n = sizes(groups)
    places = place(sizes_n, rows, length, sequences_per_row)
    if places is None:
        raise TrainingError(
            f"step {step}: groups {[group.id for group in groups]} hold {len(sizes_n)} sequences "
            f"of {sum(sizes_n)} positions, rows: {rows} of {length} positions and "
            f"{sequences_per_row} sequences at most"
        )

    arrays = {name: spec.zeros(rows, length) for name, spec in (ARRAYS | HOST_ARRAYS).items()}
    position_t = np.arange(length, dtype=np.int32)
    for side in ("inputs", "targets"):
        arrays[side].fill(pad_id)
        arrays[f"{side}_position"][:] = position_t
    if any(s.token_rewards for g in groups for s in g.scores if isinstance(s, Score)):
        arrays |= {name: np.zeros((rows, length)) for name in (TOKEN_REWARDS, PAID_AT_TOKENS)}
    if reward_parts:
        arrays[REWARD_PARTS] = np.zeros((rows, length, reward_parts), np.float32)
    if temperatures:
        arrays[TEMPERATURE] = np.ones((rows, length), np.float32)
    remaining, episodes = iter(places), itertools.count(1)
    for number, (group, advantages) in enumerate(zip(groups, batch.advantages, strict=True), 1):
        group_size = sum(isinstance(score, Score) for score in group.scores)
        for episode, score, advantage in zip(group.episodes, group.scores, advantages, strict=True):
            trains, episode_number = not (mask_truncated and episode.truncated), next(episodes)
            paid, done = iter(score.token_rewards if isinstance(score, Score) else ()), 0
            place_t = 1 + np.argsort(episode.tokens_in_time)
            turns = iter(episode.order or range(sum(1 for _ in episode.sampled)))
            for trajectory in episode.trajectories:
                row, start, segment = next(remaining)
                end = start + trajectory.length - 1
                parts = [p for t in trajectory.turns for p in (t.given, t.sampled.tokens)]
                sequence = np.concatenate(parts)
                for side, tokens in (("inputs", sequence[:-1]), ("targets", sequence[1:])):
                    arrays[side][row, start:end] = tokens
                    arrays[f"{side}_position"][row, start:end] = position_t[: end - start]
                    arrays[f"{side}_segmentation"][row, start:end] = segment
                if not isinstance(score, Score):
                    continue
                at = start - 1  # ``targets`` are one token ahead
                for turn in trajectory.turns:
                    begin = at + turn.given.size
                    count = turn.sampled.tokens.size
                    at = begin + count
                    if TOKEN_REWARDS in arrays:
                        arrays[TOKEN_REWARDS][row, begin:at] = next(paid, 0.0)
                        arrays[PAID_AT_TOKENS][row, begin:at] = score.total - score.at_the_end
                    if temperatures:
                        arrays[TEMPERATURE][row, begin:at] = group.temperature
                    own = advantage if advantage.ndim == 0 else advantage[done : done + count]
                    own_place_t = place_t[done : done + count]
                    done += count
                    if reward_parts and score.parts:
                        arrays[REWARD_PARTS][row, begin:at] = score.parts
                    for name, values in (
                        ("rl_mask", trains),
                        ("rl_advantages", own),
                        ("rl_behaviour_logprobs", turn.sampled.logprobs),
                        ("rl_staleness", step - turn.sampled.versions),
                        ("rl_group", number),
                        ("rl_group_size", group_size),
                        ("rl_sample", episode.index),
                        ("rl_sample_length", len(place_t)),
                        ("rl_total_reward", score.total),
                        ("rl_step", step),
                        ("rl_episode", episode_number),
                        ("rl_rewards", score.at_the_end),
                        ("rl_place", own_place_t),
                        ("rl_truncated", episode.truncated),
                        ("rl_turn", 1 + next(turns)),
                    ):
                        arrays[name][row, begin:at] = values
    return arrays


def _check_laid_out(where: str, trajectory: Trajectory, length: int) -> None:
    """Raises TrainingError if a trajectory cannot be laid out."""
    turns = trajectory.turns
    if not turns or turns[0].given.size == 0 or any(t.sampled.tokens.size == 0 for t in turns):
        raise TrainingError(f"{where} has an empty prompt or completion")
    if (used := trajectory.length - 1) > length:
        given = sum(t.given.size for t in turns)
        raise TrainingError(
            f"{where} needs {used} positions (given {given} + sampled {used + 1 - given} - 1), "
            f"rows have {length}"
        )
    for s in (turn.sampled for turn in turns):
        if not s.tokens.shape == s.logprobs.shape == s.versions.shape:
            raise TrainingError(
                f"{where}: {s.tokens.size} tokens, {s.logprobs.size} log-probs, "
                f"{s.versions.size} versions"
            )


def _check_trained(where: str, episode: Episode, advantage: np.ndarray, step: int) -> None:
    """Raises TrainingError if an episode could not have been generated for this step."""
    for s in episode.sampled:
        if not (np.isfinite(advantage).all() and np.isfinite(s.logprobs).all()):
            raise TrainingError(f"{where} has an advantage or log-probs that are not finite")
        if (newest := s.versions.max()) >= step:
            raise TrainingError(
                f"{where} has a token of version {newest}, which is not published before step "
                f"{step} ends"
            )
