"""Computes log-prob of the target and entropy of the next token, exact over the whole vocabulary.

With s = logits / temperature, log Z = log sum exp(s), p = exp(s - log Z) and the target t, in nats:

    logprob = s_t - log Z                 d logprob / d s_v = [v = t] - p_v
    H       = -sum p log p                d H / d s_v       = -p_v (log p_v + H)

``dense_outputs`` has the logits. ``tiled_outputs`` has the hidden states and the weights of the
output head: it computes the logits of one tile of the vocabulary after the other without keeping
them, and merges each tile's own log Z_i and H_i (online softmax, https://arxiv.org/abs/1805.02867):

    log Z = log sum_i Z_i                 H = sum_i Z_i / Z (H_i + log Z - log Z_i)

Its backward pass computes each tile's logits again (https://arxiv.org/abs/2411.09009). Both forms
compute in float32 from logits of any dtype.

Suffixes name axes: b rows, t length, e features, v vocabulary, w one tile of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from rlax_plugin.training.objective.loss import TokenOutputs

Temperature = float | jax.Array
"""A divisor of logits, above 0: of all of them, or float32 [rows, length]."""


class _Part(NamedTuple):
    """The outputs for a part of the vocabulary by itself, float32 [rows, length]."""

    log_z_bt: jax.Array
    entropy_bt: jax.Array  # of the softmax over the part
    target_bt: jax.Array  # s of the target, 0 if it lies elsewhere

    @classmethod
    def nothing(cls, shape: tuple[int, ...]) -> _Part:
        zeros_bt = jnp.zeros(shape, jnp.float32)
        return cls(jnp.full(shape, jnp.finfo(jnp.float32).min), zeros_bt, zeros_bt)

    @classmethod
    def of(cls, s_btw: jax.Array, position_bt: jax.Array, counted_w: jax.Array | None) -> _Part:
        """Returns the outputs for one tile.

        Args:
          s_btw: logits / temperature.
          position_bt: position of the target in the tile; -1 if it lies elsewhere.
          counted_w: mask of the entries that belong to the part; None: all.
        """
        log_z_bt = jax.nn.logsumexp(s_btw, axis=-1, where=counted_w)
        # From log Z instead of the sums behind it: XLA then fuses each reduction with its exp.
        log_p_btw = s_btw - log_z_bt[..., None]
        surprise_btw = -jnp.exp(log_p_btw) * log_p_btw
        # Devices that share the vocabulary gather from what they hold and add up [rows, length].
        target_bt = jnp.take_along_axis(s_btw, position_bt[..., None], axis=-1, mode="clip")
        return cls(
            log_z_bt,
            surprise_btw.sum(axis=-1, where=counted_w),
            jnp.where(position_bt >= 0, target_bt[..., 0], 0.0),
        )

    def merged(self, other: _Part) -> _Part:
        log_z_bt = jnp.logaddexp(self.log_z_bt, other.log_z_bt)
        entropy_bt = sum(
            jnp.exp(part.log_z_bt - log_z_bt) * (part.entropy_bt + log_z_bt - part.log_z_bt)
            for part in (self, other)
        )
        return _Part(log_z_bt, entropy_bt, self.target_bt + other.target_bt)

    @property
    def outputs(self) -> TokenOutputs:
        return TokenOutputs(self.target_bt - self.log_z_bt, self.entropy_bt)


@jax.tree_util.register_static
@dataclass(frozen=True, slots=True)
class _Constant:
    """A temperature that is part of the compiled program, rather than an argument of it."""

    value: float


def _argument(temperature: Temperature) -> Any:
    """Returns a temperature as the differentiated functions take it."""
    return temperature if isinstance(temperature, jax.Array) else _Constant(temperature)


def _value(argument: Any) -> Temperature:
    return argument.value if isinstance(argument, _Constant) else argument


def _saved(argument: Any) -> Any:
    """Returns the argument of a forward pass, as ``_value`` takes it in the backward pass."""
    return argument if isinstance(argument, _Constant) else argument.value


def _scaled(logits_btw: jax.Array, temperature: Temperature) -> jax.Array:
    divisor = temperature[..., None] if isinstance(temperature, jax.Array) else temperature
    return logits_btw.astype(jnp.float32) / divisor


def _logits_cotangent(
    logits_btw: jax.Array,
    position_bt: jax.Array,
    whole: _Part,
    cotangents: TokenOutputs,
    temperature: Temperature,
) -> jax.Array:
    """Returns the cotangent of some of the logits; a result that no loss uses costs nothing."""
    log_p_btw = _scaled(logits_btw, temperature) - whole.log_z_bt[..., None]
    p_btw = jnp.exp(log_p_btw)
    cotangent_btw = jnp.zeros_like(p_btw)
    by_logprob_bt, by_entropy_bt = cotangents.logprobs_bt, cotangents.entropy_bt
    if not isinstance(by_logprob_bt, SymbolicZero):
        is_target_btw = position_bt[..., None] == jnp.arange(logits_btw.shape[-1])
        by_s_btw = jnp.where(is_target_btw, 1.0 - p_btw, -p_btw)
        cotangent_btw += by_s_btw * (by_logprob_bt / temperature)[..., None]
    if not isinstance(by_entropy_bt, SymbolicZero):
        by_s_btw = p_btw * (log_p_btw + whole.entropy_bt[..., None])
        cotangent_btw -= by_s_btw * (by_entropy_bt / temperature)[..., None]
    return cotangent_btw.astype(logits_btw.dtype)


def dense_outputs(
    logits_btv: jax.Array, targets_bt: jax.Array, temperature: Temperature
) -> TokenOutputs:
    """Returns log-prob of the targets and entropy.

    Args:
      logits_btv: any float dtype; the only array of this size kept for the backward pass.
      targets_bt: int32 [rows, length].
      temperature: of all tokens, or [rows, length]; without gradient.
    """
    return _dense(logits_btv, targets_bt, _argument(temperature))


@jax.custom_vjp
def _dense(logits_btv: jax.Array, targets_bt: jax.Array, temperature: Any) -> TokenOutputs:
    return _Part.of(_scaled(logits_btv, _value(temperature)), targets_bt, None).outputs


def _dense_forward(logits: Any, targets: Any, temperature: Any) -> tuple[TokenOutputs, Any]:
    whole = _Part.of(_scaled(logits.value, temperature.value), targets.value, None)
    return whole.outputs, (logits.value, targets.value, _saved(temperature), whole)


def _dense_backward(saved: Any, cotangents: TokenOutputs) -> tuple[jax.Array, None, None]:
    logits_btv, targets_bt, temperature, whole = saved
    # Or XLA would store p for both passes instead of computing it in each: twice the time on CPU.
    whole = jax.lax.optimization_barrier(whole)
    divisor = _value(temperature)
    return _logits_cotangent(logits_btv, targets_bt, whole, cotangents, divisor), None, None


_dense.defvjp(_dense_forward, _dense_backward, symbolic_zeros=True)


@dataclass(frozen=True, slots=True)
class Head:
    """An output head as a function of any part of its weights.

    Attributes:
      logits: (hidden_bte, part of the weights) -> logits_btw of that part. It is differentiated
        inside a loop and must not close over traced arrays.
      axis: axis of the weights along which the vocabulary lies.
      tiles: largest number of parts, computed one after the other.
      shards: equal contiguous parts of the vocabulary that the devices hold. Every tile takes a
        piece of each, so all devices work on every tile, and none sends its part to another.
    """

    logits: Callable[[jax.Array, jax.Array], jax.Array]
    axis: int
    tiles: int
    shards: int = 1


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Tiles of ``weights``, whose vocabulary axis is split into two: [shards, rest].

    If the width does not divide the rest, the last tile overlaps the one before it.
    """

    weights: jax.Array
    axis: int
    shards: int
    width: int  # in each shard

    @classmethod
    def of(cls, head: Head, weights: jax.Array) -> _Tiles:
        before, after = weights.shape[: head.axis], weights.shape[head.axis + 1 :]
        rest = weights.shape[head.axis] // head.shards
        split = weights.reshape(*before, head.shards, rest, *after)
        return cls(split, head.axis, head.shards, -(-rest // head.tiles))

    @property
    def rest(self) -> int:
        return self.weights.shape[self.axis + 1]

    @property
    def count(self) -> int:
        return -(-self.rest // self.width)

    def start(self, tile: jax.Array) -> jax.Array:
        """Returns the first entry of a tile in every shard."""
        return jnp.minimum(tile * self.width, self.rest - self.width)

    def take(self, tile: jax.Array) -> jax.Array:
        """Returns the weights of a tile: ``width`` entries of the first shard, the second, ..."""
        piece = jax.lax.dynamic_slice_in_dim(
            self.weights, self.start(tile), self.width, self.axis + 1
        )
        before, after = piece.shape[: self.axis], piece.shape[self.axis + 2 :]
        return piece.reshape(*before, self.shards * self.width, *after)

    def add(self, sums: jax.Array, tile: jax.Array, values: jax.Array) -> jax.Array:
        """Adds ``values``, shaped as a tile, to ``sums``, shaped as the weights."""
        start, axis = self.start(tile), self.axis + 1
        piece = jax.lax.dynamic_slice_in_dim(sums, start, self.width, axis)
        piece += values.reshape(piece.shape)
        return jax.lax.dynamic_update_slice_in_dim(sums, piece, start, axis)

    def counted(self, tile: jax.Array) -> jax.Array | None:
        """Returns the mask of a tile's entries that no earlier tile has; None for all."""
        if self.rest % self.width == 0:
            return None
        is_new = self.start(tile) + jnp.arange(self.width) >= tile * self.width
        return jnp.tile(is_new, self.shards)

    def position(self, tile: jax.Array, targets_bt: jax.Array) -> jax.Array:
        """Returns the targets' positions in a tile; -1 if elsewhere or also in an earlier tile."""
        shard_bt, entry_bt = targets_bt // self.rest, targets_bt % self.rest
        first, start = tile * self.width, self.start(tile)
        inside_bt = (entry_bt >= first) & (entry_bt < first + self.width)
        return jnp.where(inside_bt, shard_bt * self.width + entry_bt - start, -1)


def tiled_outputs(
    head: Head,
    hidden_bte: jax.Array,
    weights: jax.Array,
    targets_bt: jax.Array,
    temperature: Temperature,
) -> TokenOutputs:
    """Returns ``dense_outputs`` of ``head.logits(hidden_bte, weights)`` without storing all logits.

    Args:
      head: the logits as a function of the weights, and the number of tiles.
      hidden_bte: input of the head, any float dtype.
      weights: weights of the head; ``head.shards`` must divide the vocabulary.
      targets_bt: int32 [rows, length].
      temperature: see ``dense_outputs``.
    """
    return _tiled(head, hidden_bte, weights, targets_bt, _argument(temperature))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _tiled(
    head: Head, hidden_bte: jax.Array, weights: jax.Array, targets_bt: jax.Array, temperature: Any
) -> TokenOutputs:
    return _merged(head, hidden_bte, weights, targets_bt, _value(temperature)).outputs


def _merged(
    head: Head,
    hidden_bte: jax.Array,
    weights: jax.Array,
    targets_bt: jax.Array,
    temperature: Temperature,
) -> _Part:
    tiles = _Tiles.of(head, weights)

    def with_tile(tile: jax.Array, merged: _Part) -> _Part:
        s_btw = _scaled(head.logits(hidden_bte, tiles.take(tile)), temperature)
        part = _Part.of(s_btw, tiles.position(tile, targets_bt), tiles.counted(tile))
        return merged.merged(part)

    return jax.lax.fori_loop(0, tiles.count, with_tile, _Part.nothing(targets_bt.shape))


def _tiled_forward(
    head: Head, hidden: Any, weights: Any, targets: Any, temperature: Any
) -> tuple[TokenOutputs, Any]:
    arrays = (hidden.value, weights.value, targets.value)
    whole = _merged(head, *arrays, temperature.value)
    return whole.outputs, (*arrays, _saved(temperature), whole)


def _tiled_backward(
    head: Head, saved: Any, cotangents: TokenOutputs
) -> tuple[jax.Array, jax.Array, None, None]:
    hidden_bte, weights, targets_bt, argument, whole = saved
    tiles, temperature = _Tiles.of(head, weights), _value(argument)

    def with_tile(tile: jax.Array, gradients: tuple[Any, Any]) -> tuple[Any, Any]:
        by_hidden_bte, by_weights = gradients
        logits_btw, pull_back = jax.vjp(head.logits, hidden_bte, tiles.take(tile))
        position_bt = tiles.position(tile, targets_bt)
        cotangent_btw = _logits_cotangent(logits_btw, position_bt, whole, cotangents, temperature)
        if (counted_w := tiles.counted(tile)) is not None:
            cotangent_btw = jnp.where(counted_w, cotangent_btw, 0)
        tile_by_hidden_bte, tile_by_weights = pull_back(cotangent_btw)
        by_hidden_bte += tile_by_hidden_bte.astype(jnp.float32)
        return by_hidden_bte, tiles.add(by_weights, tile, tile_by_weights)

    zeros = (jnp.zeros(hidden_bte.shape, jnp.float32), jnp.zeros_like(tiles.weights))
    by_hidden_bte, by_weights = jax.lax.fori_loop(0, tiles.count, with_tile, zeros)
    by_hidden_bte = by_hidden_bte.astype(hidden_bte.dtype)
    return by_hidden_bte, by_weights.reshape(weights.shape), None, None


_tiled.defvjp(_tiled_forward, _tiled_backward, symbolic_zeros=True)
