"""The loss of a critic, and how much each token weighs in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlax_plugin.api import ValueLoss

CLIPPED = "clipped"


def value_loss(clip: float) -> ValueLoss:
    """Returns the loss of PPO's critic, with the clipping of OpenAI's baselines (ppo2).

        sum_t w_t max((V_t - R_t)^2, (clip(V_t, V_t^old - c, V_t^old + c) - R_t)^2) / 2

    Args:
      clip: c; 0: without the second term.

    Returns:
      A function of values and arrays, all [rows, length]: ``weights`` w, ``returns`` R and
      ``old_values`` V^old. What they hold where the weight is 0 does not matter. Its further sum
      ``clipped`` counts the tokens at which the clipped value counts, which gives no gradient.
    """

    def loss(values_bt: Any, data: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        import jax
        import jax.numpy as jnp

        def read(array_bt: Any) -> Any:  # selected before any arithmetic
            return jnp.where(data["weights"] > 0, array_bt, 0.0)

        values_bt, old_bt, returns_bt = map(read, (values_bt, data["old_values"], data["returns"]))
        squared_bt = (values_bt - returns_bt) ** 2
        clipped_bt = jnp.zeros(values_bt.shape, bool)
        if clip:
            near_bt = jnp.clip(values_bt, old_bt - clip, old_bt + clip)
            clipped_bt = (near_bt - returns_bt) ** 2 > squared_bt
            squared_bt = jnp.where(clipped_bt, (near_bt - returns_bt) ** 2, squared_bt)
        total = (read(data["weights"]) * squared_bt).sum() / 2
        return total, {CLIPPED: jax.lax.stop_gradient(clipped_bt.sum(dtype=total.dtype))}

    return loss


def token_weights(aggregation: str, mask_bt: np.ndarray, segmentation_bt: np.ndarray) -> np.ndarray:
    """Returns the weight of each token, float32 [rows, length].

    Args:
      aggregation: ``token_mean``: 1; ``sequence_mean``: 1 / trained tokens of its sequence.
      mask_bt: trained tokens.
      segmentation_bt: number of each token's sequence in its row.
    """
    trained_bt = mask_bt > 0
    weights_bt = trained_bt.astype(np.float32)
    if aggregation == "sequence_mean":
        rows, _ = np.nonzero(trained_bt)
        _, own, tokens = np.unique(
            np.stack((rows, segmentation_bt[trained_bt])),
            axis=1,
            return_inverse=True,
            return_counts=True,
        )
        weights_bt[trained_bt] = 1 / tokens[own.reshape(-1)]
    return weights_bt
