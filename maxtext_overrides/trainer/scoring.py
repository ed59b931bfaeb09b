"""Computes log-probs of given tokens by forward passes of the trainer's model, without sampling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from flax import nnx

from maxtext_overrides.trainer.loss import make_scores_fn
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS, Loop
from maxtext_overrides.variables import restore

if TYPE_CHECKING:
    from maxtext_overrides.config.loading import Config
    from maxtext_overrides.trainer.kept_weights import Weights


def target_logprobs_of(
    graph: Any, model_state: nnx.State, data: Mapping[str, Any], temperature: float
) -> jax.Array:
    """Returns log-probs of ``data["targets"]`` given the inputs up to each; to be traced by JAX.

    Args:
      graph, model_state: see ``train_loop.Loop``; call it under ``Loop.shardings()``.
      data: MaxText's arrays, int32 [rows, length]; rows are independent.
      temperature: above 0.

    Returns:
      float32 [rows, length], nats.
    """
    model = nnx.merge(graph, model_state)
    return make_scores_fn(model.config, temperature)(model, data).logprobs_bt


class BatchScores:
    """Computes the log-probs of a batch under given weights, one micro-batch at a time."""

    def __init__(self, config: Config, temperature: float):
        self._rows: int = config.micro_batch_size_to_train_on
        self._temperature = temperature
        self._compiled: Callable[..., jax.Array] | None = None

    def __call__(
        self, loop: Loop, weights: Weights, arrays: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Returns float32 [rows, length]: the log-probs of ``targets``."""
        from maxtext.utils.sharding import get_input_data_sharding

        sharding = get_input_data_sharding(loop.config, loop.mesh)
        data = {name: arrays[name] for name in MAXTEXT_ARRAYS}
        parts = []
        with loop.shardings():
            if self._compiled is None:
                self._compiled = self._made(loop.graph)
            for start in range(0, len(data["inputs"]), self._rows):
                part = {name: a[start : start + self._rows] for name, a in data.items()}
                part = jax.device_put(part, sharding)
                parts.append(self._compiled(loop.model_state, weights, part))
        return np.concatenate(jax.device_get(parts))

    def _made(self, graph: Any) -> Callable[..., jax.Array]:
        @jax.jit
        def logprobs_bt(model_state: Any, weights: Weights, data: Mapping[str, Any]) -> jax.Array:
            # Of the live state only RNG variables are used; jit drops arguments that are not.
            return target_logprobs_of(graph, restore(model_state, weights), data, self._temperature)

        return logprobs_bt
