"""Corrects sliding windows during decoding, for models such as Gemma 2 and Gemma 3.

MaxText 0.2.5 keeps the prompt and the generated tokens in two caches, the second a ring, and
applies the window to each of them as if the query stood at its end. So a step sees tokens of the
prompt that are long out of the window, and misses generated ones that are inside. As soon as a
sequence is longer than a window, a worker then generates from another distribution than the trainer
trains.

Here a cache entry that is out of the window loses its segment, and MaxText's own window is left
out. The position of an entry is its place in the cache of the prompt, and in the ring the position
of the query minus the entry's age.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

OVERRIDES = BY_MODULE["maxtext_overrides/sampler/windows.py"]


def install(allow_untested: bool = False) -> None:
    """Wraps the two functions for the rest of the process; a second call changes nothing.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    attention, update, stock_update = resolve(OVERRIDES[0].symbol)
    operation, mask, stock_mask = resolve(OVERRIDES[1].symbol)
    types, _, kinds = resolve(OVERRIDES[2].symbol)
    if hasattr(stock_update, "__wrapped__"):
        return
    decoding = types.MODEL_MODE_AUTOREGRESSIVE

    def is_windowed(layer: Any, model_mode: str) -> bool:
        return model_mode == decoding and layer.attention_type == kinds.LOCAL_SLIDING

    @functools.wraps(stock_update)
    def update_kv_caches(
        self: Any, key: Any, value: Any, decoder_segment_ids: Any, model_mode: str, chunk: Any
    ) -> Any:
        found = stock_update(self, key, value, decoder_segment_ids, model_mode, chunk)
        if not is_windowed(self, model_mode):
            return found
        (*prompt, prompt_segments), (ring_key, ring_value, ring_segments, lengths) = found
        following = self.KVCache_0.cache_ar_index.get_value().reshape(())
        prompt_segments, ring_segments = _inside(
            prompt_segments,
            ring_segments,
            (following - 1) % ring_segments.shape[1],
            self.sliding_window_size,
            types.DECODING_ACTIVE_SEQUENCE_INDICATOR,
        )
        return [(*prompt, prompt_segments), (ring_key, ring_value, ring_segments, lengths)]

    @functools.wraps(stock_mask)
    def generate_attention_mask(self: Any, *args: Any, **named: Any) -> Any:
        model_mode = named.get("model_mode", args[3] if len(args) > 3 else None)
        if is_windowed(self, str(model_mode)):
            named["attention_type"] = kinds.GLOBAL
        return stock_mask(self, *args, **named)

    setattr(attention, update, update_kv_caches)
    setattr(operation, mask, generate_attention_mask)


def _inside(
    prompt_bp: jax.Array, ring_br: jax.Array, now: jax.Array, window: int, active: int
) -> tuple[jax.Array, jax.Array]:
    """Returns the segments of the cache entries, 0 where they are out of the window.

    Args:
      prompt_bp: int32 [slots, longest prompt], ``active`` at the places of the prompt's tokens.
      ring_br: int32 [slots, ring], ``active`` where a token of the slot is, the query's included.
      now: place of the query's own entry in the ring.
      window: number of tokens a query sees, itself included.
      active: segment that marks an entry in use.
    """
    length_b1 = jnp.sum(prompt_bp == active, axis=1, keepdims=True)
    query_b1 = length_b1 + jnp.sum(ring_br == active, axis=1, keepdims=True) - 1
    near_bp = jnp.arange(prompt_bp.shape[1]) > query_b1 - window
    ages_r = (now - jnp.arange(ring_br.shape[1])) % ring_br.shape[1]
    return jnp.where(near_bp, prompt_bp, 0), jnp.where(ages_r < window, ring_br, 0)
