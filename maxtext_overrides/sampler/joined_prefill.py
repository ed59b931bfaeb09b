"""Prefills tokens behind keys and values that slots hold already.

MaxText's own chunked prefill takes one prompt, and a program is compiled for each length of its
earlier part. Here the rows of a call have earlier parts of different lengths: each is moved to the
right, so that it ends where the new tokens begin, and the places left of it belong to no segment.
Distances in a row, and so windows, are then those of the sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from maxtext_overrides.upstream.declared import BY_MODULE
from maxtext_overrides.upstream.override import resolve
from maxtext_overrides.upstream.signatures import check

_MASK = "maxtext.layers.attention_op.AttentionOp.generate_attention_mask"
OVERRIDES = (
    *BY_MODULE["maxtext_overrides/sampler/joined_prefill.py"],
    # ``windows`` wraps it as well, and each symbol is declared once.
    *(one for one in BY_MODULE["maxtext_overrides/sampler/windows.py"] if one.symbol == _MASK),
)

Path = tuple[Any, ...]
Caches = dict[Path, jax.Array]
Axes = Mapping[Path, tuple[str, ...]]

_OF_PROMPT = {"cached_ar_key": "cached_prefill_key", "cached_ar_value": "cached_prefill_value"}
_SEGMENTS = "cache_prefill_segment_id"
_PROMPT = (*_OF_PROMPT.values(), _SEGMENTS)
_KNOWN = {*_OF_PROMPT, *_PROMPT, "cache_ar_index", "cache_ar_segment_id", "cached_ar_lengths"}
_WRAPPED = "_rlax_joined_prefill"
_joins: ContextVar[bool] = ContextVar("_joins", default=False)


def install(allow_untested: bool = False) -> None:
    """Wraps two functions for the rest of the process; a second call changes nothing.

    Outside of ``joined`` they do what they did before.

    Raises:
      OverrideError: MaxText's source differs from the tested one.
    """
    check(OVERRIDES, allow_untested)
    cache, prefill, stock_prefill = resolve(OVERRIDES[0].symbol)
    operation, mask, stock_mask = resolve(_MASK)
    if hasattr(stock_prefill, _WRAPPED):
        return

    @functools.wraps(stock_prefill)
    def kv_cache_prefill(self: Any, key: Any, value: Any, decoder_segment_ids: Any) -> Any:
        if not _joins.get():
            return stock_prefill(self, key, value, decoder_segment_ids)
        order = self.prefill_cache_axis_order
        earlier_key = self.get_cached_values(self.prefill_key_vars, key.dtype, order)
        earlier_value = self.get_cached_values(self.prefill_value_vars, value.dtype, order)
        earlier_segments = self.cache_prefill_segment_id.get_value()
        return stock_prefill(
            self,
            jnp.concatenate([earlier_key.astype(key.dtype), key], axis=1),
            jnp.concatenate([earlier_value.astype(value.dtype), value], axis=1),
            jnp.concatenate([earlier_segments, decoder_segment_ids], axis=1),
        )

    @functools.wraps(stock_mask)
    def generate_attention_mask(
        self: Any,
        query: Any,
        key: Any,
        decoder_segment_ids: Any,
        model_mode: str,
        previous_chunk: Any = None,
        *args: Any,
        **named: Any,
    ) -> Any:
        if _joins.get():  # MaxText reads nothing of it but the length of the earlier part
            previous_chunk = np.zeros((1, key.shape[1] - query.shape[1]), np.int32)
        return stock_mask(
            self, query, key, decoder_segment_ids, model_mode, previous_chunk, *args, **named
        )

    setattr(kv_cache_prefill, _WRAPPED, True)
    setattr(cache, prefill, kv_cache_prefill)
    setattr(operation, mask, generate_attention_mask)


def possible(config: Any, axes: Axes) -> bool:
    """True if the prefills of a model can be joined, so that nothing but rounding differs.

    Args:
      config: MaxText's.
      axes: names of the axes of each decode cache.
    """
    kept = all(
        path[-1] in _KNOWN and (path[-1] not in _PROMPT or len(places(names)) == 1)
        for path, names in axes.items()
    )
    alike = all(
        names == axes[*path[:-1], _OF_PROMPT[path[-1]]]
        for path, names in axes.items()
        if path[-1] in _OF_PROMPT
    )
    places_matter = (
        config.moba
        or config.use_indexer
        or config.engram_layers
        or config.chunk_attn_window_size > 0
    )
    kinds = ("global", "local_sliding", "mla")
    rounded = bool(config.quantize_kvcache)
    return kept and alike and not places_matter and not rounded and config.attention_type in kinds


@contextmanager
def joined(model: Any) -> Iterator[None]:
    """Within it, the tokens of a prefill also attend to what the model's prefill caches hold."""
    for _, module in nnx.iter_graph(model):
        if hasattr(module, "attention_kernel"):
            module.attention_kernel = "dot_product"  # other kernels take no earlier part
    token = _joins.set(True)
    try:
        yield
    finally:
        _joins.reset(token)


def earlier_parts(
    caches: Caches, axes: Axes, slots_n: jax.Array, counts_n: jax.Array, reach: int, active: int
) -> Caches:
    """Returns the first tokens of slots' contexts as the earlier parts of a joined prefill.

    Args:
      caches: those of all slots.
      slots_n: int32 [n].
      counts_n: int32 [n], tokens of each earlier part, at most ``reach``.
      reach: places of the result.
      active: segment of the places in use.
    """
    found = {}
    for path, full, batch, place in _prompts(caches, axes):
        rows = jax.lax.slice_in_dim(jnp.take(full, slots_n, axis=batch), 0, reach, axis=place)
        if path[-1] == _SEGMENTS:
            inside_nr = jnp.arange(reach) >= reach - counts_n[:, None]
            found[path] = _segments(inside_nr, rows.shape, batch, place, active)
        else:  # what comes round to the left belongs to no segment
            found[path] = _rolled(rows, reach - counts_n, batch, place)
    return found


def whole_prompts(
    joined_caches: Caches,
    axes: Axes,
    counts_n: jax.Array,
    lengths_n: jax.Array,
    reach: int,
    longest: int,
    active: int,
) -> Caches:
    """Returns the caches of a joined prefill as those of prompts that begin on the left.

    Args:
      joined_caches: those of prompts hold the earlier parts, and behind these the new tokens.
      counts_n, lengths_n: int32 [n], tokens of the earlier parts, and of the new ones.
      reach: places of the earlier parts.
      longest: places that a slot has for a prompt.
      active: segment of the places in use.
    """
    found = dict(joined_caches)
    for path, full, batch, place in _prompts(joined_caches, axes):
        size = min(full.shape[place], longest)
        left = _rolled(full, counts_n - reach, batch, place)
        left = jax.lax.slice_in_dim(left, 0, size, axis=place)
        if path[-1] == _SEGMENTS:
            inside_np = jnp.arange(size) < (counts_n + lengths_n)[:, None]
            left = _segments(inside_np, left.shape, batch, place, active)
        found[path] = left
    return found


def out_of_the_ring(
    caches: Caches,
    axes: Axes,
    slots_k: jax.Array,
    count: jax.Array,
    prompt_k: jax.Array,
    new_k: jax.Array,
    age_k: jax.Array,
) -> Caches:
    """Copies the generated tokens of slots behind their prompts, into the caches of the prompts.

    Args:
      caches: those of all slots.
      slots_k: int32 [k]; the first ``count`` are meant.
      prompt_k: int32 [k], tokens in the cache of the prompt.
      new_k: int32 [k], entries of the ring that belong to the sample.
      age_k: int32 [k], decode steps since the first of them was written, that one included.
    """
    found = dict(caches)
    for path, ring, batch, place in _prompts(caches, axes, _OF_PROMPT):
        target = (*path[:-1], _OF_PROMPT[path[-1]])
        index = jnp.ravel(caches[*path[:-1], "cache_ar_index"])[0]  # the same in all layers

        def moved(i: jax.Array, full: jax.Array, ring=ring, batch=batch, place=place, index=index):
            ring_row = jax.lax.dynamic_slice_in_dim(ring, slots_k[i], 1, batch)
            row = jax.lax.dynamic_slice_in_dim(full, slots_k[i], 1, batch)
            behind_p = jnp.arange(full.shape[place]) - prompt_k[i]
            entries_p = (index - age_k[i] + behind_p) % ring.shape[place]
            new = jnp.take(ring_row, entries_p, axis=place)
            belongs_p = (behind_p >= 0) & (behind_p < new_k[i])
            shape = [1] * full.ndim
            shape[place] = -1
            row = jnp.where(belongs_p.reshape(shape), new, row)
            return jax.lax.dynamic_update_slice_in_dim(full, row, slots_k[i], batch)

        found[target] = jax.lax.fori_loop(0, count, moved, caches[target])
    return found


def _prompts(
    caches: Caches, axes: Axes, names: Mapping[str, str] | tuple[str, ...] = _PROMPT
) -> Iterator[tuple[Path, jax.Array, int, int]]:
    """Yields path, array, axis of the slots and axis of the places."""
    for path, full in caches.items():
        if path[-1] in names:
            (place,) = places(axes[path])
            yield path, full, axes[path].index("cache_batch"), place


def places(names: tuple[str, ...]) -> list[int]:
    """Returns the axes of a cache that count tokens."""
    return [i for i, name in enumerate(names) if name.endswith("_sequence")]


def _rolled(full: jax.Array, shifts_n: jax.Array, batch: int, place: int) -> jax.Array:
    roll = functools.partial(jnp.roll, axis=place - (place > batch))
    return jax.vmap(roll, in_axes=(batch, 0), out_axes=batch)(full, shifts_n)


def _segments(
    inside_np: jax.Array, shape: tuple[int, ...], batch: int, place: int, active: int
) -> jax.Array:
    aligned = [1] * len(shape)
    aligned[batch], aligned[place] = shape[batch], shape[place]
    assert batch < place, "rows come before places"
    return jnp.broadcast_to(jnp.where(inside_np, active, 0).reshape(aligned), shape)
