"""The canary: log-probs by which a worker verifies that it holds the published weights.

They are computed from the buffers about to be published, not from the live model, by the trainer's
own graph and in the trainer's layout, so the check covers exactly the data that is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from maxtext_overrides.trainer.model_outputs import target_logprobs_of
from maxtext_overrides.trainer.train_loop import MAXTEXT_ARRAYS, Loop
from maxtext_overrides.variables import restore
from rlax_plugin.api import Canary

# Nats. Measured on CPU, as the largest difference between trainer and MaxEngine on eight sequences,
# for 2 layers 32 wide, DeepSeek's experts, and 8 layers 512 wide with 8192 words: 4e-6 in float32,
# 0.015 in bfloat16. A tied embedding with its rows out of order gives more than 0.5.
FLOAT32_TOLERANCE = 1e-4
ROUNDED_TOLERANCE = 0.5

_LONGEST = 128  # tokens; attention kernels want no shorter blocks, a canary needs no more


class CanaryForward:
    """One jitted forward pass, compiled at the first call.

    Args:
      tokens: int32 [n + 1], the same for every version; fewer than 2 tokens make no canary.
    """

    def __init__(self, tokens: np.ndarray):
        self._tokens = np.asarray(tokens, np.int32)
        self._forward: Callable[..., jax.Array] | None = None

    def __call__(self, loop: Loop, arrays: Mapping[str, jax.Array]) -> Canary | None:
        """Launches the pass and returns at once; the log-probs stay on the device.

        Args:
          arrays: of ``train_loop.fresh_weights``; they are read, never donated.

        Returns:
          The canary; None if there are no tokens for it, or if experts drop tokens beyond their
          capacity, because then log-probs depend on the length of the row they are computed in.
        """
        if len(self._tokens) < 2 or _drops_tokens(loop.config):
            return None
        with loop.shardings():
            if self._forward is None:
                self._forward = self._compiled(loop)
            logprobs_t = self._forward(loop.model_state, dict(arrays))
        return Canary(self._tokens, logprobs_t, tolerance(loop))

    def _compiled(self, loop: Loop) -> Callable[..., jax.Array]:
        graph, data, count = loop.graph, _rows(self._tokens, loop), len(self._tokens) - 1
        everywhere = jax.sharding.NamedSharding(loop.mesh, jax.sharding.PartitionSpec())

        def logprobs_t(model_state: nnx.State, arrays: Mapping[str, jax.Array]) -> jax.Array:
            published_state = restore(model_state, arrays)
            return target_logprobs_of(graph, published_state, data, temperature=1.0)[0, :count]

        # Of the live state only RNG variables are used; jit drops arguments that are not.
        return jax.jit(logprobs_t, out_shardings=everywhere)


def tolerance(loop: Loop) -> float:
    """Maximum difference, in nats, between trainer and worker that is not an error."""
    config = loop.config
    float32 = config.dtype == np.float32 and config.weight_dtype == np.float32
    # Accelerators multiply float32 matrices in fewer bits unless told otherwise.
    on_cpu = loop.mesh.devices.flat[0].platform == "cpu"
    exact = on_cpu or config.matmul_precision in ("highest", "float32")
    return FLOAT32_TOLERANCE if float32 and exact and not config.quantization else ROUNDED_TOLERANCE


def _drops_tokens(config: Any) -> bool:
    return config.num_experts > 1 and config.capacity_factor > 0


def _rows(tokens: np.ndarray, loop: Loop) -> dict[str, np.ndarray]:
    """The sequence in every row, padded on the right, in a shape that any mesh can divide."""
    config = loop.config
    count = len(tokens) - 1
    if config.using_pipeline_parallelism:  # its layers are built for one shape
        shape = (config.micro_batch_size_to_train_on, config.max_target_length)
    else:
        shape = (loop.mesh.size, max(count, min(config.max_target_length, _LONGEST)))
    data = {name: spec.zeros(*shape) for name, spec in MAXTEXT_ARRAYS.items()}
    for side, shown in (("inputs", tokens[:-1]), ("targets", tokens[1:])):
        data[side][:, :count] = shown
        data[f"{side}_position"][:] = np.arange(shape[1])
        data[f"{side}_segmentation"][:, :count] = 1
    return data
