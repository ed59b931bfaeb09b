"""Builds training batches and decides which tokens train; no other module does.

One trajectory per row, or several if they are packed. With ``sequence`` the given and sampled
tokens of all its turns, ``inputs = sequence[:-1]`` and ``targets = sequence[1:]``; ``rl_*`` at
position t concern ``targets[t]``, and are 0 where that token was given. Numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.errors import TrainingError
from rlax_plugin.objective.advantages import PAID_AT_TOKENS
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
}
HOST_ARRAYS: dict[str, ArraySpec] = {
    # For advantages (``advantages.of_batch``); they need not reach a device. The group's place in
    # the batch, from 1, on sampled tokens of scored episodes, 0 elsewhere; there as well the
    # episode's place in the batch, from 1, and the reward that it was paid as a whole.
    "rl_group": _INT32,
    "rl_episode": _INT32,
    "rl_rewards": ArraySpec(np.dtype(np.float64)),
    # The token's place in time among the sampled tokens of its episode, from 1: trajectories lie in
    # different rows, in any order, and an environment may go from one to another and back.
    "rl_place": _INT32,
    # 1 on these tokens if their episode was cut at a limit.
    "rl_truncated": _INT32,
}
TOKEN_REWARDS = "rl_token_rewards"
"""float64, reward given at a token.

Only in a batch that has such rewards, together with ``PAID_AT_TOKENS``.
"""


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
    order = list(range(len(sizes)))
    if sequences_per_row > 1:
        order.sort(key=lambda sample: -sizes[sample])  # a stable sort
    used_b, held_b = np.zeros(rows, int), np.zeros(rows, int)  # positions, samples
    places: dict[int, tuple[int, int, int]] = {}
    for sample in order:
        fits_b = (used_b + sizes[sample] <= length) & (held_b < sequences_per_row)
        row = int(fits_b.argmax())
        if not fits_b[row]:
            return None
        held_b[row] += 1
        places[sample] = (row, int(used_b[row]), int(held_b[row]))
        used_b[row] += sizes[sample]
    return [places[sample] for sample in range(len(sizes))]


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
    )


def build_arrays(
    batch: TrainBatch,
    *,
    rows: int,
    length: int,
    pad_id: int = 0,
    sequences_per_row: int = 1,
    mask_truncated: bool = False,
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

    Raises:
      TrainingError: a trajectory is too long, has an empty turn, is from a version that cannot be
        in use yet, or has advantages or log-probabilities that are missing or not finite;
        trajectories that do not fit.
    """
    step, groups = batch.step, batch.groups
    if len(batch.advantages) != len(groups):
        raise TrainingError(
            f"step {step}: {len(groups)} groups with advantages for {len(batch.advantages)}"
        )
    for group, advantages in zip(groups, batch.advantages, strict=True):
        if not len(advantages) == len(group.episodes) == len(group.scores):
            raise TrainingError(f"step {step}: group {group.id} lacks an advantage per sample")
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
    remaining, episodes = iter(places), itertools.count(1)
    for number, (group, advantages) in enumerate(zip(groups, batch.advantages, strict=True), 1):
        for episode, score, advantage in zip(group.episodes, group.scores, advantages, strict=True):
            trains, episode_number = not (mask_truncated and episode.truncated), next(episodes)
            paid, done = iter(score.token_rewards if isinstance(score, Score) else ()), 0
            place_t = 1 + np.argsort(episode.tokens_in_time)
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
                    own = advantage if advantage.ndim == 0 else advantage[done : done + count]
                    own_place_t = place_t[done : done + count]
                    done += count
                    for name, values in (
                        ("rl_mask", trains),
                        ("rl_advantages", own),
                        ("rl_behaviour_logprobs", turn.sampled.logprobs),
                        ("rl_staleness", step - turn.sampled.versions),
                        ("rl_group", number),
                        ("rl_episode", episode_number),
                        ("rl_rewards", score.at_the_end),
                        ("rl_place", own_place_t),
                        ("rl_truncated", episode.truncated),
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
