"""Supports Llama 3's scaling of rotary positions with factors other than 8, as in Llama 3.2.

``rope_type: llama3.1`` divides low frequencies by 8, which no key of MaxText changes. Here
``rope_linear_scaling_factor``, which MaxText does not read with that type, is the factor unless it
is 1. Stock MaxText would compute such a model with 8, and so wrongly, without a message.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.models.architecture import LLAMA3
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

OVERRIDES = BY_MODULE["maxtext_overrides/models/rope_scaling.py"]


def install(allow_untested: bool = False) -> None:
    """Wraps the function for the rest of the process; a second call changes nothing.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    attention, name, stock = resolve(OVERRIDES[0].symbol)
    if hasattr(stock, "__wrapped__"):
        return
    scaled = _scaled(resolve(OVERRIDES[1].symbol)[2])

    @functools.wraps(stock)
    def init_rotary_embedding(self: Any) -> Any:
        found, factor = stock(self), self.config.rope_linear_scaling_factor
        if type(found) is not scaled.__base__ or factor == 1.0:
            return found
        return scaled(
            min_timescale=found.min_timescale,
            max_timescale=found.max_timescale,
            mesh=found.mesh,
            embedding_dims=found.embedding_dims,
            cast_as_fprop_dtype=found.cast_as_fprop_dtype,
            fprop_dtype=found.fprop_dtype,
            use_scale=found.use_scale,
            shard_mode=found.shard_mode,
            rngs=self.rngs,
            factor=factor,
        )

    setattr(attention, name, init_rotary_embedding)


@functools.cache
def _scaled(stock: Any) -> Any:
    """Returns the class with a configurable factor."""

    class ScaledRotaryEmbedding(stock):
        """MaxText's class with a factor; formula from ``transformers.modeling_rope_utils``."""

        def __init__(self, *, factor: float, **arguments: Any):
            super().__init__(**arguments)
            self.factor = factor

        def _apply_scaling_factor(self, freq: jax.Array) -> jax.Array:
            low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
            turns = LLAMA3["original_max_position_embeddings"] * freq / (2 * jnp.pi)
            whole = jnp.clip((turns - low) / (high - low), 0.0, 1.0)
            return (1 - whole) * freq / self.factor + whole * freq

    return ScaledRotaryEmbedding
