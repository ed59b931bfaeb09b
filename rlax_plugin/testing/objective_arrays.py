"""The arrays of ``evaluate_objective``: checked, and completed with those of samples.

Suffixes name axes: ``_b`` is one per sample, ``_bt`` [samples, length].
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rlax_plugin.objective.update_sums import update_sums

LARGEST_REWARD = 1e15
"""The product of the largest ``rlax.reward_limit`` and weight: its square is a float32."""


def of_samples(
    mask_bt: np.ndarray, rewards_b: np.ndarray, group_size: int, step: int
) -> dict[str, np.ndarray]:
    """Returns the arrays of the batch that say of each token to which sample it belongs."""
    place_b = np.arange(len(rewards_b))
    scored_bg = mask_bt.any(axis=1).reshape(-1, group_size)
    by_sample: dict[str, np.ndarray] = {
        "rl_group": 1 + place_b // group_size,
        "rl_group_size": scored_bg.sum(axis=1).repeat(group_size),
        "rl_sample": place_b % group_size,
        "rl_sample_length": mask_bt.sum(axis=1),
        "rl_total_reward": rewards_b,
        "rl_step": np.full(len(rewards_b), step),
    }
    arrays = {name: np.where(mask_bt, x_b[:, None], 0) for name, x_b in by_sample.items()}
    return arrays | update_sums(arrays | {"rl_mask": mask_bt, "targets_segmentation": mask_bt * 1})


def check_arrays(arrays: Mapping[str, np.ndarray], rewards_b: np.ndarray, group_size: int) -> None:
    """Raises ValueError unless the arrays are those of whole groups with finite rewards."""
    shape = arrays["mask_bt"].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"mask_bt has shape {shape}, expected [samples, length]")
    for name, array in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, expected that of mask_bt, {shape}")
    if rewards_b.shape != shape[:1]:
        raise ValueError(f"rewards_b has shape {rewards_b.shape}, expected {shape[:1]}")
    if group_size < 1 or shape[0] % group_size:
        raise ValueError(f"{shape[0]} samples are not groups of group_size = {group_size}")
    read_b = rewards_b[(arrays["mask_bt"] > 0).any(axis=1)]
    if not np.isfinite(read_b).all() or np.abs(read_b).max(initial=0) > LARGEST_REWARD:
        reason = f"expected finite numbers of at most {LARGEST_REWARD:g}, as in a run"
        raise ValueError(f"rewards_b = {rewards_b}: {reason}")
