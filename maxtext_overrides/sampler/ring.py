"""The ring in which decode steps record each token and its log-probs, shared by all slots."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def packed(token_b: jax.Array, full_b: jax.Array, sampled_b: jax.Array) -> jax.Array:
    """Returns int32 [b, 3]: the token and the bits of its two log-probs, moved as one array."""
    bits = [jax.lax.bitcast_convert_type(x, jnp.int32) for x in (full_b, sampled_b)]
    return jnp.stack([token_b, *bits], axis=-1)


def collect(state: Mapping[str, jax.Array], slots_k: jax.Array) -> jax.Array:
    """Returns int32 [k, 3, max_new_tokens]: the arrays of ``packed`` in the order of generation."""
    ring = state["record"].shape[0]
    rows_kt = (state["born"][slots_k][:, None] + jnp.arange(ring // 2)) % ring
    later_kt3 = state["record"][rows_kt, :, slots_k[:, None]]
    all_kt3 = jnp.concatenate([state["first"][slots_k][:, None], later_kt3], axis=1)
    return jnp.swapaxes(all_kt3, 1, 2)
