"""Log-probs of given tokens: one forward pass of the trainer's model, nothing sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx

from maxtext_overrides.trainer.loss import make_scores_fn


def target_logprobs_of(
    graph: Any, model_state: nnx.State, data: Mapping[str, Any], temperature: float
) -> jax.Array:
    """Log-probs of ``data["targets"]`` given the inputs up to each; to be traced by JAX.

    Args:
      graph, model_state: see ``train_loop.Loop``; call it under ``Loop.shardings()``.
      data: MaxText's arrays, int32 [rows, length]; rows are independent.
      temperature: above 0.

    Returns:
      float32 [rows, length], nats.
    """
    model = nnx.merge(graph, model_state)
    return make_scores_fn(model.config, temperature)(model, data).logprobs_bt
