"""Training batches: the one place that decides which tokens train.

One sample per row. With ``sequence = prompt + completion``, ``inputs = sequence[:-1]`` and
``targets = sequence[1:]``; ``rl_*`` at position t concern ``targets[t]``. Numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlax_plugin.errors import TrainingError
from rlax_plugin.types import Group, Rollout, TrainBatch

ARRAYS: dict[str, np.dtype] = {
    # MaxText's own. Segmentation is 1 on real tokens, 0 on padding; padding attends to padding, so
    # that no attention row is empty, in a row without any sample either.
    "inputs": np.dtype(np.int32),
    "inputs_position": np.dtype(np.int32),
    "inputs_segmentation": np.dtype(np.int32),
    "targets": np.dtype(np.int32),
    "targets_position": np.dtype(np.int32),
    "targets_segmentation": np.dtype(np.int32),
    # The objective's. Mask: 1 on completion tokens (stop token included) of scored samples, else 0.
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


def build_batch(
    step: int, groups: Sequence[Group], *, rows: int, length: int, pad_id: int = 0
) -> TrainBatch:
    """Lays out the samples of admitted groups, in order, one per row.

    Samples without a reward keep their row with a mask of 0. Rows beyond the last sample are
    padding.

    Args:
      step: the training step the batch is for, counts from 1.
      groups: with ``advantages`` set.
      rows: rows of every array.
      length: tokens of every row; a sample needs prompt + completion - 1.
      pad_id: token of padding in ``inputs`` and ``targets``.

    Raises:
      TrainingError: a sample is too long, empty, from a version that cannot be in use yet, or has
        advantages or log-probabilities that are missing or not finite; more samples than rows.
    """
    samples = sum(len(group.rollouts) for group in groups)
    if samples > rows:
        ids = [group.id for group in groups]
        raise TrainingError(f"step {step}: groups {ids} hold {samples} samples, rows: {rows}")
    arrays = {name: np.zeros((rows, length), dtype) for name, dtype in ARRAYS.items()}
    arrays["inputs"].fill(pad_id)
    arrays["targets"].fill(pad_id)
    used_b = np.zeros(rows, np.int32)  # real tokens per row
    row = 0
    for group in groups:
        if group.advantages is None or len(group.advantages) != len(group.rollouts):
            raise TrainingError(f"step {step}: group {group.id} lacks an advantage per sample")
        prompt = group.prompt.tokens
        for rollout, advantage in zip(group.rollouts, group.advantages, strict=True):
            used = prompt.size + rollout.tokens.size - 1
            _check(step, group, rollout, float(advantage), used, length)
            sequence = np.concatenate((prompt, rollout.tokens))
            arrays["inputs"][row, :used] = sequence[:-1]
            arrays["targets"][row, :used] = sequence[1:]
            used_b[row] = used
            if rollout.reward is not None:
                completion = slice(prompt.size - 1, used)
                arrays["rl_mask"][row, completion] = 1
                arrays["rl_advantages"][row, completion] = advantage
                arrays["rl_behaviour_logprobs"][row, completion] = rollout.logprob_full
                arrays["rl_staleness"][row, completion] = step - rollout.versions
            row += 1

    position_t = np.arange(length, dtype=np.int32)
    for side in ("inputs", "targets"):
        arrays[f"{side}_position"][:] = position_t
        arrays[f"{side}_segmentation"][:] = position_t < used_b[:, None]
    return TrainBatch(step=step, arrays=arrays, groups=tuple(groups))


def _check(
    step: int, group: Group, rollout: Rollout, advantage: float, used: int, length: int
) -> None:
    """Raises if a sample cannot be laid out, or could not have been drawn for this step."""
    where = f"step {step}: sample {rollout.index} of group {group.id}"
    if group.prompt.tokens.size == 0 or rollout.tokens.size == 0:
        raise TrainingError(f"{where} has an empty prompt or completion")
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
