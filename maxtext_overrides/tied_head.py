"""Computes tied logits in float32 if the model computes in float32.

MaxText rounds a tied embedding to bfloat16 for the logits, whatever ``dtype`` says. In a float32
model the rounded values are multiplied as float32, and there XLA may leave the rounding out
(``xla_allow_excess_precision``, on by default). It does so in some programs and not in others: with
a vocabulary of 8192, trainer and prefill differed by up to 7e-3 nats, without the rounding by 1e-5.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides import folding
from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

OVERRIDES = BY_MODULE["maxtext_overrides/tied_head.py"]


def install(allow_untested: bool = False) -> None:
    """Replaces the function for the rest of the process; a second call changes nothing.

    Trainer and worker both do it before they trace a model. It is not undone, because engines trace
    their programs whenever a new shape comes, on any thread.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    embeddings, name, stock = resolve(OVERRIDES[0].symbol)
    decoders, _, _ = resolve(f"maxtext.layers.nnx_decoders.{name}")

    def attend_on_embedding(
        query: jax.Array,
        embedding_table: jax.Array,
        attend_dtype: Any,
        config: Any,
        out_sharding: Any = None,
    ) -> jax.Array:
        if query.dtype != jnp.float32 or config.shard_mode == embeddings.ShardMode.EXPLICIT:
            return stock(query, embedding_table, attend_dtype, config, out_sharding)
        table = embeddings._maybe_move_embedding_to_device(embedding_table, config)
        table = table.astype(query.dtype)
        rows = folding.fold(query) if folding.pays() else query
        over_features = (((rows.ndim - 1,), (1,)), ((), ()))
        logits = jax.lax.dot_general(
            rows, table, over_features, preferred_element_type=attend_dtype
        )
        return logits.reshape(*query.shape[:-1], len(table))

    setattr(decoders, name, attend_on_embedding)
