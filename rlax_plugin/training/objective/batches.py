"""Builds training batches and decides which tokens train; no other module does.

One trajectory per row, or several if they are packed. With ``sequence`` the given and sampled
tokens of all its turns, ``inputs = sequence[:-1]`` and ``targets = sequence[1:]``; ``rl_*`` at
position t concern ``targets[t]``, and are 0 where that token was given. Numpy only.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlax_plugin.base.errors import TrainingError
from rlax_plugin.base.types import (
    NO_VERSION,
    Episode,
    Sampled,
    Score,
    ScoredGroup,
    TrainBatch,
    Trajectory,
)
from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.training.objective import shared_prompts as shared
from rlax_plugin.training.objective.advantages import PAID_AT_TOKENS, REWARD_PARTS
from rlax_plugin.training.objective.arrays import ArraySpec
from rlax_plugin.training.objective.placing import place
from rlax_plugin.training.objective.spans import Spans

_INT32, _FLOAT32 = ArraySpec(np.dtype(np.int32)), ArraySpec(np.dtype(np.float32))

ARRAYS: dict[str, ArraySpec] = {
    # MaxText's own. Segmentation counts a row's sequences from 1 and is 0 on padding; padding
    # attends to padding, so that no attention row is empty, in a row without any sequence either.
    # Positions start at 0 in every sequence. ``shared_prompts`` says how samples share a prompt.
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
    # The group's place in the batch, from 1, and the number of its samples that have a score; with
    # a selection those that train, repeated ones again.
    "rl_group": _INT32,
    "rl_group_size": _INT32,
    # The sample's index in its group, from 0, and its sampled tokens in all trajectories. Of a
    # sample that a selection repeats, each copy but the first has a further index.
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
GUIDED = "rl_guided"
"""int32, 1 at the tokens of a demonstration in a group; only with ``rlax.objective.guidance``."""
DEMONSTRATED = "rl_demonstrated"
"""int32, 1 where a token of a demonstration beside RL trains; a trainer adds it with their rows."""
TOKEN_REWARDS = "rl_token_rewards"
"""float64, reward given at a token.

Only in a batch that has such rewards, together with ``PAID_AT_TOKENS``.
"""


_OF_EPISODES = (
    "rl_mask",
    "rl_group",
    "rl_group_size",
    "rl_sample",
    "rl_sample_length",
    "rl_total_reward",
    "rl_episode",
    "rl_rewards",
    PAID_AT_TOKENS,
    TEMPERATURE,
    "rl_truncated",
    GUIDED,
)
_OF_TURNS = ("rl_turn", "rl_place")


def device_arrays(section: RlaxSection) -> dict[str, ArraySpec]:
    """Returns name -> spec of the arrays of a run's batches that the loss gets.

    ``ARRAYS``, and ``REWARD_PARTS``, ``TEMPERATURE`` and ``GUIDED`` if the run has them.
    """
    parts = section.most_rewards
    found = ARRAYS | ({REWARD_PARTS: ArraySpec(np.dtype(np.float32), (parts,))} if parts else {})
    if section.objective.guidance is not None:
        found[GUIDED] = _INT32
    return (
        found if section.rollouts.only_temperature is not None else found | {TEMPERATURE: _FLOAT32}
    )


def temperature_of(data: Mapping[str, Any], only: float | None) -> Any:
    """Returns the divisor of the logits: a number, or [rows, length], one for each token.

    Args:
      data: arrays of a batch; ``TEMPERATURE`` counts if it is there.
      only: ``Rollouts.only_temperature``.
    """
    return data[TEMPERATURE] if only is None or TEMPERATURE in data else only


def repeats_problem(groups: Sequence[ScoredGroup], repeats: Any, count: int) -> str:
    """Describes what is wrong with the repeats of a batch; empty: they can be trained on.

    Args:
      groups: those of the batch.
      repeats: perhaps ``TrainBatch.repeats``.
      count: the largest sum of all repeats.
    """
    if not isinstance(repeats, Sequence) or len(repeats) != len(groups):
        return f"{repeats!r}: expected an array for each of {len(groups)} groups"
    total = 0
    for group, own in zip(groups, repeats, strict=True):
        where, episodes = f"{own!r} for group {group.id}", len(group.episodes)
        if not isinstance(own, np.ndarray) or own.dtype.kind not in "iu":
            return f"{where}: expected an array of integers"
        if own.shape != (episodes,) or (own < 0).any():
            return f"{where}: expected one number, at least 0, for each of {episodes} episodes"
        if own[np.isnan(group.rewards)].any():
            return f"{where}: expected 0 for each episode without a reward"
        total += int(own.sum())
    return "" if 0 < total <= count else f"repeats that sum to {total}: expected 1 to {count}"


def sizes(groups: Sequence[ScoredGroup]) -> list[int]:
    """Returns the positions that each trajectory takes in a row: one less than its tokens."""
    return [t.length - 1 for g in groups for episode in g.episodes for t in episode.trajectories]


def positions_taken(section: RlaxSection, groups: Sequence[ScoredGroup]) -> int:
    """Returns the positions that groups take in the rows of a batch as a config lays it out.

    Args:
      groups: those of one batch, which fit.
    """
    if not section.batches.shared_prompts:
        return sum(sizes(groups))
    branches = [shared.branches(group) for group in groups]
    rows, in_row = section.batch_rows, section.batches.sequences_per_row
    layout = shared.place_shared(branches, rows, section.row_tokens, in_row)
    assert layout is not None, "the groups of a batch fit"
    own = sum(branch.positions - branch.shared for group in branches for branch in group)
    return own + sum(prompt.count for prompt in layout.prompts)


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
        shared_prompts=section.batches.shared_prompts,
        mask_truncated=algorithm.mask_truncated,
        reward_parts=section.most_rewards,
        temperatures=section.rollouts.only_temperature is None,
        guided=section.objective.guidance is not None,
    )


def build_arrays(
    batch: TrainBatch,
    *,
    rows: int,
    length: int,
    pad_id: int = 0,
    sequences_per_row: int = 1,
    shared_prompts: bool = False,
    mask_truncated: bool = False,
    reward_parts: int = 0,
    temperatures: bool = False,
    guided: bool = False,
) -> dict[str, np.ndarray]:
    """Lays out the trajectories of a batch by ``place``: ``ARRAYS`` and ``HOST_ARRAYS``.

    Episodes without a score keep their place with a mask of 0. With a selection, an episode has a
    place for each time that it trains, as if it were another sample. Everything else is padding.

    Args:
      batch: the batch.
      rows: rows of every array.
      length: tokens of every row; a trajectory needs one less than it has.
      pad_id: token of padding in ``inputs`` and ``targets``.
      sequences_per_row: largest number of sequences in one row.
      shared_prompts: if True, sequences of a group that are in one row share their prompt.
      mask_truncated: if True, truncated episodes train no token; their rewards count.
      reward_parts: number of rewards of the config; above 0, ``REWARD_PARTS`` is added.
      temperatures: if True, each group has a temperature, and the arrays have ``TEMPERATURE``.
      guided: if True, groups may have demonstrations, and the arrays have ``GUIDED``.

    Raises:
      TrainingError: a trajectory is too long, has an empty turn, is from a version that cannot be
        in use yet, or has advantages or log-probabilities that are missing or not finite;
        trajectories that do not fit; a group without a temperature above 0.
    """
    _check(batch, length, temperatures)
    batch = batch.selected
    sizes_n = sizes(batch.groups)
    branches: list[tuple[shared.Branch, ...]] = []
    layout: shared.SharedLayout | None = None
    if shared_prompts:
        branches = [shared.branches(group) for group in batch.groups]
        layout = shared.place_shared(branches, rows, length, sequences_per_row)
        places = layout and layout.places
    else:
        places = place(sizes_n, rows, length, sequences_per_row)
    if places is None:
        raise TrainingError(
            f"step {batch.step}: groups {[group.id for group in batch.groups]} hold {len(sizes_n)} "
            f"sequences of {sum(sizes_n)} positions, rows: {rows} of {length} positions and "
            f"{sequences_per_row} sequences at most"
        )
    arrays = {name: spec.zeros(rows, length) for name, spec in (ARRAYS | HOST_ARRAYS).items()}
    for side in ("inputs", "targets"):
        arrays[side].fill(pad_id)
        if not shared_prompts:  # such rows are longer than a model may have positions
            arrays[f"{side}_position"][:] = np.arange(length, dtype=np.int32)
    scores = [score for group in batch.groups for score in group.scores if isinstance(score, Score)]
    if any(score.token_rewards for score in scores):
        arrays |= {name: np.zeros((rows, length)) for name in (TOKEN_REWARDS, PAID_AT_TOKENS)}
    if reward_parts:
        arrays[REWARD_PARTS] = np.zeros((rows, length, reward_parts), np.float32)
    if temperatures:
        arrays[TEMPERATURE] = np.ones((rows, length), np.float32)
    if guided:
        arrays[GUIDED] = _INT32.zeros(rows, length)
    if layout is not None and sizes_n:
        branches_n = list(itertools.chain.from_iterable(branches))
        shared.write_tokens(arrays, _tokens(batch.groups), branches_n, layout)
    elif sizes_n:
        _write_tokens(arrays, _tokens(batch.groups), sizes_n, places)
    if scores:
        _write_sampled(arrays, batch, places, mask_truncated)
    return arrays


def _tokens(groups: Sequence[ScoredGroup]) -> np.ndarray:
    """Returns the tokens of all trajectories, in order."""
    turns = (t for g in groups for e in g.episodes for one in e.trajectories for t in one.turns)
    return np.concatenate([part for t in turns for part in (t.given, t.sampled.tokens)])


def _write_tokens(
    arrays: dict[str, np.ndarray],
    tokens: np.ndarray,
    sizes_n: Sequence[int],
    places: Sequence[tuple[int, int, int]],
) -> None:
    """Writes the tokens of all trajectories, their positions and their segments."""
    rows_n, starts_n, segments_n = zip(*places, strict=True)
    spans = Spans(rows_n, starts_n, sizes_n, arrays["inputs"].shape[1])
    end_n = np.cumsum(np.asarray(sizes_n, np.int64) + 1)
    first_n = end_n - 1 - np.asarray(sizes_n, np.int64)
    for side, left_out_n in (("inputs", end_n - 1), ("targets", first_n)):
        spans.write(arrays[side], np.delete(tokens, left_out_n))
        spans.write(arrays[f"{side}_position"], spans.within)
        spans.write(arrays[f"{side}_segmentation"], spans.each(segments_n))


def _write_sampled(
    arrays: dict[str, np.ndarray],
    batch: TrainBatch,
    places: Sequence[tuple[int, int, int]],
    mask_truncated: bool,
) -> None:
    """Writes what concerns the sampled tokens of scored episodes; a turn is a span."""
    spans_n, values_n, parts_n = [], [], []
    sampled: list[Sampled] = []
    advantages, paid = list[np.ndarray](), list[np.ndarray]()
    remaining, episodes = iter(places), itertools.count(1)
    for number, (group, given) in enumerate(zip(batch.groups, batch.advantages, strict=True), 1):
        group_size = sum(isinstance(score, Score) for score in group.scores)
        further, seen = 1 + max((one.index for one in group.episodes), default=0), Counter[int]()
        for episode, score, advantage in zip(group.episodes, group.scores, given, strict=True):
            episode_number = next(episodes)
            sample = episode.index + further * seen[episode.index]
            seen[episode.index] += 1
            own_places = [next(remaining) for _ in episode.trajectories]
            if not isinstance(score, Score):
                continue
            own = list(episode.sampled)
            counts = [s.tokens.size for s in own]
            values = (  # in the order of ``_OF_EPISODES``
                not (mask_truncated and episode.truncated),
                number,
                group_size,
                sample,
                sum(counts),
                score.total,
                episode_number,
                score.at_the_end,
                score.total - score.at_the_end,
                group.temperature or 0.0,
                episode.truncated,
                episode.demonstration,
            )
            values_n += [values + in_time for in_time in _in_time(episode, counts)]
            for (row, start, _), trajectory in zip(own_places, episode.trajectories, strict=True):
                end = start - 1  # ``targets`` are one token ahead
                for turn in trajectory.turns:
                    first = end + turn.given.size
                    end = first + turn.sampled.tokens.size
                    spans_n.append((row, first, end - first))
            parts_n += [score.parts] * len(own)
            sampled += own
            whole = np.ndim(advantage) == 0
            count = sum(counts)
            advantages.append(np.full(count, advantage) if whole else advantage[:count])
            paid += score.token_rewards or [np.zeros(sum(counts))]
    rows_n, firsts_n, counts_n = np.array(spans_n).T
    spans = Spans(rows_n, firsts_n, counts_n, arrays["inputs"].shape[1])
    for name, of_turns in zip((*_OF_EPISODES, *_OF_TURNS), np.array(values_n).T, strict=True):
        if name in arrays:
            spans.write(arrays[name], spans.each(of_turns))
    if REWARD_PARTS in arrays:
        none = (0.0,) * arrays[REWARD_PARTS].shape[2]
        filled_n = np.array([(*one, *none[len(one) :]) for one in parts_n])
        spans.write(arrays[REWARD_PARTS], spans.each(filled_n))
    if TOKEN_REWARDS in arrays:
        spans.write(arrays[TOKEN_REWARDS], np.concatenate(paid))
    spans.add(arrays["rl_place"], spans.within)
    spans.write(arrays["rl_step"], batch.step)
    spans.write(arrays["rl_advantages"], np.concatenate(advantages))
    spans.write(arrays["rl_behaviour_logprobs"], np.concatenate([s.logprobs for s in sampled]))
    spans.write(arrays["rl_staleness"], batch.step - np.concatenate([s.versions for s in sampled]))


def _in_time(episode: Episode, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Returns of each turn its number in time and its first token's, both from 1."""
    order = episode.order or range(len(counts))
    firsts, place_t = [0] * len(counts), 1
    for turn in sorted(range(len(counts)), key=order.__getitem__):
        firsts[turn] = place_t
        place_t += counts[turn]
    return [(1 + number, first) for number, first in zip(order, firsts, strict=True)]


def _check(batch: TrainBatch, length: int, temperatures: bool) -> None:
    step, groups = batch.step, batch.groups
    if len(batch.advantages) != len(groups):
        raise TrainingError(
            f"step {step}: {len(groups)} groups with advantages for {len(batch.advantages)}"
        )
    trained: list[tuple[str, Episode, np.ndarray]] = []
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
                trained.append((where, episode, advantage))
    sampled = [s for _, episode, _ in trained for s in episode.sampled]
    if not sampled:
        return
    known = (s.logprobs for s in sampled if not _unknown(s))
    numbers = [*(advantage for *_, advantage in trained), *known]
    finite = np.isfinite(np.concatenate(numbers, axis=None)).all()
    if not finite or np.concatenate([s.versions for s in sampled]).max() >= step:
        for where, episode, advantage in trained:  # one after the other, to name it
            _check_trained(where, episode, advantage, step)


def _unknown(sampled: Sampled) -> bool:
    """True if a log has lacked the log-probs of a sample, so that all are NaN."""
    return bool((sampled.versions == NO_VERSION).all() and np.isnan(sampled.logprobs).all())


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
        if not (np.isfinite(advantage).all() and (_unknown(s) or np.isfinite(s.logprobs).all())):
            raise TrainingError(f"{where} has an advantage or log-probs that are not finite")
        if (newest := s.versions.max()) >= step:
            raise TrainingError(
                f"{where} has a token of version {newest}, which is not published before step "
                f"{step} ends"
            )
