"""Sums over a whole update, which a micro-batch or a host may hold only in part. Numpy only.

A group, and the trajectories of a sample, may lie in different micro-batches. So what a slot needs
of all of them is computed here, before the update is divided, and each token carries the result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlax_plugin.training.objective.arrays import ArraySpec

UPDATE_ARRAYS: dict[str, ArraySpec] = {
    # Tokens of the update that train: of the token's group, and of its sample in all trajectories.
    # 0 where no token trains.
    "rl_group_tokens": ArraySpec(np.dtype(np.int32)),
    "rl_sample_tokens": ArraySpec(np.dtype(np.int32)),
    # The numbers of sequences and of groups of the update with a token that trains.
    "rl_update_sequences": ArraySpec(np.dtype(np.int32)),
    "rl_update_groups": ArraySpec(np.dtype(np.int32)),
}


def update_sums(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns ``UPDATE_ARRAYS`` of one update.

    Args:
      batch: arrays of all micro-batches of the update; ``rl_mask``, ``rl_group``, ``rl_sample`` and
        ``targets_segmentation`` are read.
    """
    trained_bt = batch["rl_mask"] > 0
    group_bt = np.where(trained_bt, batch["rl_group"], 0)
    sample_bt = np.where(trained_bt, batch["rl_sample"], 0)
    each_bt = group_bt * (1 + int(sample_bt.max(initial=0))) + sample_bt
    rows_b1 = np.arange(len(trained_bt))[:, None]
    segment_bt = batch["targets_segmentation"]
    sequences = np.unique((rows_b1 * (1 + segment_bt.max(initial=0)) + segment_bt)[trained_bt]).size
    found = {
        "rl_group_tokens": sums_over(group_bt, trained_bt),
        "rl_sample_tokens": sums_over(each_bt, trained_bt),
        "rl_update_sequences": np.where(trained_bt, sequences, 0),
        "rl_update_groups": np.where(trained_bt, np.unique(group_bt[trained_bt]).size, 0),
    }
    return {name: array.astype(UPDATE_ARRAYS[name].dtype) for name, array in found.items()}


def sums_over(ids_bt: np.ndarray, x_bt: np.ndarray) -> np.ndarray:
    """Returns at each token the sum of x over the tokens with the same id, float64.

    Args:
      ids_bt: int, at least 0.
      x_bt: the numbers to add up; the result is 0 where they are 0.
    """
    sums = np.bincount(ids_bt.ravel(), weights=np.asarray(x_bt, np.float64).ravel())
    return np.where(x_bt, sums[ids_bt], 0.0)
