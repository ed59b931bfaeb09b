"""Training batches: the one place that decides which tokens train.

One sample per row, or several if they are packed. With ``sequence = prompt + completion``,
``inputs = sequence[:-1]`` and ``targets = sequence[1:]``; ``rl_*`` at position t concern
``targets[t]``. Numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlax_plugin.config import Algorithm, RlaxSection
from rlax_plugin.errors import TrainingError
from rlax_plugin.types import Group, Rollout, TrainBatch

ARRAYS: dict[str, np.dtype] = {
    # MaxText's own. Segmentation counts a row's samples from 1 and is 0 on padding; padding attends
    # to padding, so that no attention row is empty, in a row without any sample either. Positions
    # start at 0 in every sample.
    "inputs": np.dtype(np.int32),
    "inputs_position": np.dtype(np.int32),
    "inputs_segmentation": np.dtype(np.int32),
    "targets": np.dtype(np.int32),
    "targets_position": np.dtype(np.int32),
    "targets_segmentation": np.dtype(np.int32),
    # The objective's, on completion tokens (stop token included) of scored samples, 0 elsewhere.
    # Mask: 1 where a token trains; all of them do, but for ``mask_truncated``.
    "rl_mask": np.dtype(np.int32),
    "rl_advantages": np.dtype(np.float32),
    # log-probability under the sampler (``Rollout.logprob_full``), nats.
    "rl_behaviour_logprobs": np.dtype(np.float32),
    # Version that the batch's update produces minus the token's version; 1 is on-policy.
    "rl_staleness": np.dtype(np.int32),
}
HOST_ARRAYS: dict[str, np.dtype] = {
    # For advantages (``advantages.of_batch``); they need not reach a device. The group's place in
    # the batch, from 1, on completion tokens of scored samples, 0 elsewhere; and the reward there.
    "rl_group": np.dtype(np.int32),
    "rl_rewards": np.dtype(np.float64),
}


def sizes(groups: Sequence[Group]) -> list[int]:
    """Positions that each sample takes in a row: prompt + completion - 1."""
    return [g.prompt.tokens.size + r.tokens.size - 1 for g in groups for r in g.rollouts]


def place(
    sizes: Sequence[int], rows: int, length: int, sequences_per_row: int
) -> list[tuple[int, int, int]] | None:
    """Finds room for every sample, undivided: first-fit decreasing, equal ones in order.

    The first row with room takes a sample, the longest sample first. With one sequence per row no
    order is better than another: sample i lies in row i.

    Args:
      sizes: positions of each sample, from 1.
      rows: how many there are.
      length: positions of a row.
      sequences_per_row: samples in one row at most.

    Returns:
      (row, first position, segment) of each sample in the order of ``sizes``; segments count from 1
      in each row. None: they do not fit.
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


def batch_of(
    section: RlaxSection, algorithm: Algorithm, step: int, groups: Sequence[Group]
) -> TrainBatch:
    """The batch that a config makes of accepted groups; see ``build_batch``.

    Args:
      algorithm: of the objective, preset and config merged.
    """
    return build_batch(
        step,
        groups,
        rows=section.batch_rows,
        length=section.row_tokens,
        sequences_per_row=section.batches.sequences_per_row,
        mask_truncated=algorithm.mask_truncated,
    )


def build_batch(
    step: int,
    groups: Sequence[Group],
    *,
    rows: int,
    length: int,
    pad_id: int = 0,
    sequences_per_row: int = 1,
    mask_truncated: bool = False,
) -> TrainBatch:
    """Lays out the samples of accepted groups where ``place`` says: ``ARRAYS`` and ``HOST_ARRAYS``.

    Samples without a reward keep their place with a mask of 0. What no sample covers is padding.

    Args:
      step: the training step the batch is for, counts from 1.
      groups: with ``advantages`` set.
      rows: rows of every array.
      length: tokens of every row; a sample needs prompt + completion - 1.
      pad_id: token of padding in ``inputs`` and ``targets``.
      sequences_per_row: samples in one row at most.
      mask_truncated: samples that were cut at their longest train no token; their rewards count.

    Raises:
      TrainingError: a sample is too long, empty, from a version that cannot be in use yet, or has
        advantages or log-probabilities that are missing or not finite; samples that do not fit.
    """
    for group in groups:
        if group.advantages is None or len(group.advantages) != len(group.rollouts):
            raise TrainingError(f"step {step}: group {group.id} lacks an advantage per sample")
        for rollout, advantage in zip(group.rollouts, group.advantages, strict=True):
            _check(step, group, rollout, float(advantage), length)
    sizes_n = sizes(groups)
    places = place(sizes_n, rows, length, sequences_per_row)
    if places is None:
        raise TrainingError(
            f"step {step}: groups {[group.id for group in groups]} hold {len(sizes_n)} samples of "
            f"{sum(sizes_n)} positions, rows: {rows} of {length} positions and "
            f"{sequences_per_row} samples at most"
        )

    dtypes = ARRAYS | HOST_ARRAYS
    arrays = {name: np.zeros((rows, length), dtype) for name, dtype in dtypes.items()}
    position_t = np.arange(length, dtype=np.int32)
    for side in ("inputs", "targets"):
        arrays[side].fill(pad_id)
        arrays[f"{side}_position"][:] = position_t
    remaining = iter(places)
    for number, group in enumerate(groups, 1):
        assert group.advantages is not None
        for rollout, advantage in zip(group.rollouts, group.advantages, strict=True):
            row, start, segment = next(remaining)
            sequence = np.concatenate((group.prompt.tokens, rollout.tokens))
            end = start + sequence.size - 1
            for side, tokens in (("inputs", sequence[:-1]), ("targets", sequence[1:])):
                arrays[side][row, start:end] = tokens
                arrays[f"{side}_position"][row, start:end] = position_t[: end - start]
                arrays[f"{side}_segmentation"][row, start:end] = segment
            if rollout.reward is None:
                continue
            truncated = mask_truncated and rollout.finish_reason == "length"
            for name, values in (
                ("rl_mask", not truncated),
                ("rl_advantages", advantage),
                ("rl_behaviour_logprobs", rollout.logprob_full),
                ("rl_staleness", step - rollout.versions),
                ("rl_group", number),
                ("rl_rewards", rollout.reward),
            ):
                arrays[name][row, end - rollout.tokens.size : end] = values
    return TrainBatch(step=step, arrays=arrays, groups=tuple(groups))


def _check(step: int, group: Group, rollout: Rollout, advantage: float, length: int) -> None:
    """Raises if a sample cannot be laid out, or could not have been generated for this step."""
    where = f"step {step}: sample {rollout.index} of group {group.id}"
    if group.prompt.tokens.size == 0 or rollout.tokens.size == 0:
        raise TrainingError(f"{where} has an empty prompt or completion")
    used = group.prompt.tokens.size + rollout.tokens.size - 1
    if used > length:
        raise TrainingError(
            f"{where} needs {used} positions (prompt {group.prompt.tokens.size} + completion "
            f"{rollout.tokens.size} - 1), rows have {length}"
        )
    if not rollout.tokens.shape == rollout.logprob_full.shape == rollout.versions.shape:
        raise TrainingError(
            f"{where}: {rollout.tokens.size} tokens, {rollout.logprob_full.size} log-probs, "
            f"{rollout.versions.size} versions"
        )
    if rollout.reward is None:
        return
    if not (math.isfinite(advantage) and np.isfinite(rollout.logprob_full).all()):
        raise TrainingError(f"{where} has an advantage or log-probs that are not finite")
    if rollout.versions.max() >= step:
        raise TrainingError(
            f"{where} has a token of version {rollout.versions.max()}, which is not published "
            f"before step {step} ends"
        )
