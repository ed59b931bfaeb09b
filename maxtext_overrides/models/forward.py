"""Computes logits with MaxText's own model and stored weights.

It runs on this machine's CPU, in float32, and without the parts of a trainer or a worker, so it
shows the computation that a checkpoint stands for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules

from maxtext_overrides import tied_head
from maxtext_overrides.config.loading import Config
from maxtext_overrides.config.memory import abstract_model
from maxtext_overrides.models import rope_scaling
from maxtext_overrides.models.reading import StoredWeights
from maxtext_overrides.variables import restore

EXACT = {"dtype": "float32", "weight_dtype": "float32", "matmul_precision": "highest"}
"""MaxText's keys that make its logits exact enough to compare."""


class Forward:
    """A model with its weights in memory, which computes logits.

    Args:
      config: MaxText's, as ``config.loading.load_to_check`` returns it with ``EXACT``.
      weights: exactly the model's variables.

    Raises:
      RlaxError: the weights cannot be read, or are those of another model.
    """

    def __init__(self, config: Config, weights: StoredWeights):
        tied_head.install(config.allow_untested)  # as the trainer does, and with the next line
        rope_scaling.install(config.allow_untested)
        self._rules, axes = config.logical_axis_rules, tuple(config.mesh_axes)
        devices = np.array(jax.devices()[:1]).reshape((1,) * len(axes))
        self._mesh = jax.sharding.Mesh(devices, axes)
        graph, state = nnx.split(abstract_model(config, "train"))
        arrays = {name: jnp.asarray(weights.take(name), jnp.float32) for name in weights.shapes}
        # Keys of random numbers, which nothing here uses, are still shapes only.
        self._state = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x,
            restore(state, arrays),
        )

        def logits(state: nnx.State, tokens_bt: jax.Array, positions_bt: jax.Array) -> Any:
            model = nnx.merge(graph, state, copy=True)
            ones = jnp.ones_like(tokens_bt)
            return model(tokens_bt, positions_bt, decoder_segment_ids=ones, enable_dropout=False)

        self._logits = jax.jit(logits)

    def __call__(
        self, tokens: np.ndarray, at: np.ndarray, positions: np.ndarray | None = None
    ) -> np.ndarray:
        """Returns the logits of one row.

        Args:
          tokens: [n].
          at: [k] positions in the row whose logits are returned.
          positions: [n] rotary positions of the tokens; None: 0, 1, 2, ...

        Returns:
          float32 [k, vocabulary].
        """
        places = np.arange(len(tokens)) if positions is None else positions
        rows = (np.asarray(x, np.int32)[None] for x in (tokens, places))
        with jax.set_mesh(self._mesh), logical_axis_rules(self._rules):
            return np.asarray(self._logits(self._state, *rows))[0, at].astype(np.float32)
