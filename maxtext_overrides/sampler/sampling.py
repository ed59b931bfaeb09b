"""Samples one token per slot, each with its own temperature, top-k, top-p and random number.

Pure JAX. It uses one uniform number per slot and an inverse CDF instead of a Gumbel variable per
vocabulary entry. The uniform is a threefry2x32 hash of the sample's seed and the token's position
in the completion, so a token does not depend on slot, batch size, neighbours or the default PRNG
(MaxText's ``unsafe_rbg`` depends on the position in the batch). Replaces
``maxtext.inference.inference_utils.sampling`` (MaxText 0.2.5: one key for all slots, static
settings, log-probs of raw logits); delete when that takes them per slot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlax_plugin.rollout.batching.decode_engine import MAX_STOP_IDS


def uniforms(seeds_b2: jax.Array, position_b: jax.Array) -> jax.Array:
    """Returns one number in [0, 1) per slot.

    Args:
      seeds_b2: uint32, high and low half of each sample's 64-bit seed.
      position_b: int, position of the token in its completion, from 0.

    Returns:
      float32 [b], multiples of 2^-24.
    """

    def one(seed_2: jax.Array, position: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(seed_2, impl="threefry2x32")
        # fold_in is itself the hash; its output needs no second one to be a random word.
        return jax.random.key_data(jax.random.fold_in(key, position))[0]

    words_b = jax.vmap(one)(seeds_b2, position_b)
    return (words_b >> 8).astype(jnp.float32) * jnp.float32(2**-24)


def _invert(weights: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the first index whose running sum exceeds ``target`` and whose weight is above 0.

    Sums run along the last axis. If rounding leaves no such index, the last one of positive weight
    is returned. The second result is the sum of the weights before the index.
    """
    positive = weights > 0
    sums = jnp.cumsum(weights, axis=-1)
    place = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    last = jnp.max(jnp.where(positive, place, 0), axis=-1)
    beyond = jnp.where(positive & (sums > target[..., None]), place, last[..., None])
    index = jnp.min(beyond, axis=-1)
    before = jnp.sum(jnp.where(place < index[..., None], weights, 0.0), axis=-1)
    return index, before


def _kept(scaled_bv: jax.Array, top_k_b: jax.Array, top_p_b: jax.Array) -> jax.Array:
    """Returns the mask of tokens that survive top-k and then top-p; ties go to the lower id."""
    batch, vocab = scaled_bv.shape
    place_bv = jax.lax.broadcasted_iota(jnp.int32, scaled_bv.shape, 1)
    negated_bv, order_bv = jax.lax.sort((-scaled_bv, place_bv), num_keys=1, is_stable=True)
    weights_bv = jnp.exp(negated_bv[:, :1] - negated_bv)
    in_top_k_bv = (place_bv < top_k_b[:, None]) | (top_k_b[:, None] <= 0)
    weights_bv = jnp.where(in_top_k_bv, weights_bv, 0.0)
    before_bv = jnp.cumsum(weights_bv, axis=-1) - weights_bv
    mass_b = jnp.sum(weights_bv, axis=-1)
    in_top_p_bv = (before_bv < (top_p_b * mass_b)[:, None]) | (top_p_b[:, None] >= 1.0)
    keep_bv = in_top_k_bv & (in_top_p_bv | (place_bv == 0))
    rows_b1 = jnp.arange(batch)[:, None]
    return jnp.zeros((batch, vocab), bool).at[rows_b1, order_bv].set(keep_bv, unique_indices=True)


def sample(
    logits_bv: jax.Array,
    uniform_b: jax.Array,
    temperature_b: jax.Array,
    top_k_b: jax.Array,
    top_p_b: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Samples a token per slot: temperature, then top-k, then top-p of the tokens top-k left.

    Args:
      logits_bv: any float dtype; computed in float32.
      uniform_b: float32 in [0, 1), from ``uniforms``.
      temperature_b: float32; 0 takes the most probable token (the lowest id among equals).
      top_k_b: int32; 0 keeps all.
      top_p_b: float32 in (0, 1]; at least one token is always kept. The compiled program sorts the
        vocabulary only if some slot truncates.

    Returns:
      token int32 [b]; logprob float32 [b], ``log_softmax(logits / temperature)`` at the token
      without truncation (temperature 1 where it is 0); truncated_logprob float32 [b], renormalised
      over the kept tokens (0 where the temperature is 0).
    """
    batch, vocab = logits_bv.shape
    logits_bv = logits_bv.astype(jnp.float32)
    greedy_b = temperature_b <= 0
    scaled_bv = logits_bv / jnp.where(greedy_b, 1.0, temperature_b)[:, None]
    top_b = jnp.max(scaled_bv, axis=-1)

    # Two levels, blocks and places in a block, so that no running sum goes over the vocabulary.
    width = 2 ** math.ceil(math.log2(vocab) / 2)
    blocks = -(-vocab // width)
    padding = ((0, 0), (0, blocks * width - vocab))

    def in_blocks(array_bv: jax.Array, fill: float) -> jax.Array:
        return jnp.pad(array_bv, padding, constant_values=fill).reshape(batch, blocks, width)

    scaled_bnw = in_blocks(scaled_bv, -jnp.inf)
    full_bn = jnp.sum(jnp.exp(scaled_bnw - top_b[:, None, None]), axis=-1)

    cut_b = (top_k_b > 0) | (top_p_b < 1)

    def truncated() -> tuple[jax.Array, jax.Array]:
        keep_bnw = in_blocks(_kept(scaled_bv, top_k_b, top_p_b), False)
        kept_bnw = jnp.where(keep_bnw, scaled_bnw, -jnp.inf)
        sums_bn = jnp.sum(jnp.exp(kept_bnw - top_b[:, None, None]), axis=-1)
        # What keeps all has the same bits whether or not a neighbour is truncated.
        return keep_bnw, jnp.where(cut_b[:, None], sums_bn, full_bn)

    keep_bnw, kept_bn = jax.lax.cond(
        jnp.any(cut_b), truncated, lambda: (jnp.ones(scaled_bnw.shape, bool), full_bn)
    )
    kept_mass_b = jnp.sum(kept_bn, axis=-1)
    target_b = uniform_b * kept_mass_b
    block_b, before_b = _invert(kept_bn, target_b)
    kept_bnw = jnp.where(keep_bnw, scaled_bnw, -jnp.inf)
    chosen_bw = jnp.take_along_axis(kept_bnw, block_b[:, None, None], axis=1)[:, 0]
    place_b, _ = _invert(jnp.exp(chosen_bw - top_b[:, None]), target_b - before_b)
    token_b = block_b * width + place_b

    token_b = jax.lax.cond(
        jnp.any(greedy_b),
        lambda: jnp.where(greedy_b, jnp.argmax(scaled_bv, axis=-1).astype(jnp.int32), token_b),
        lambda: token_b,
    )
    shifted_b = jnp.take_along_axis(scaled_bv, token_b[:, None], axis=-1)[:, 0] - top_b
    logprob_b = shifted_b - jnp.log(jnp.sum(full_bn, axis=-1))
    truncated_logprob_b = jnp.where(greedy_b, 0.0, shifted_b - jnp.log(kept_mass_b))
    return token_b, logprob_b, truncated_logprob_b


def sample_next(logits_bv: jax.Array, settings: Mapping[str, Any], place_b: jax.Array) -> Any:
    """Samples with the settings of slots; see ``sample``.

    Args:
      place_b: int32, position of the token in its completion.
    """
    return sample(
        logits_bv,
        uniforms(settings["seed"], place_b),
        settings["temperature"],
        settings["top_k"],
        settings["top_p"],
    )


def empty_settings(slots: int) -> dict[str, np.ndarray]:
    """Returns the settings of slots that are not in use, by name."""
    return {
        "seed": np.zeros((slots, 2), np.uint32),
        "temperature": np.ones(slots, np.float32),
        "top_k": np.zeros(slots, np.int32),
        "top_p": np.ones(slots, np.float32),
        "limit": np.ones(slots, np.int32),
        "stop": np.full((slots, MAX_STOP_IDS), -1, np.int32),
    }


def ends(token_b: jax.Array, generated_b: jax.Array, settings: Mapping[str, Any]) -> jax.Array:
    """Returns bool [b]: samples whose last token is a stop token, or reaches their limit."""
    stopped_b = jnp.any(token_b[:, None] == settings["stop"], axis=-1)
    return stopped_b | (generated_b >= settings["limit"])
