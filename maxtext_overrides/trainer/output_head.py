"""Applies MaxText's output head to one tile of the vocabulary at a time.

The decoder's own ``apply_output_head`` makes the logits, with a module that holds a tile of the
weights in place of all of them. Tied or not, every cast, scale and soft cap is as in the model.
Only the final norm is applied beforehand, once for all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax
from flax import nnx

from maxtext_overrides.kept_positions import KeptPositions
from maxtext_overrides.vocabulary import Head, Temperature, tiled_outputs
from rlax_plugin.base.errors import ConfigError
from rlax_plugin.training.objective.loss import TokenOutputs

_ROWS_AND_LENGTH = ("activation_embed_and_logits_batch", "activation_length")


@contextmanager
def hidden_states(
    wanted: bool, *, heads: bool = True, kept: KeptPositions | None = None
) -> Iterator[list[jax.Array]]:
    """Collects what decoders give their output heads while the block is traced.

    MaxText keeps it only with ``num_vocab_tiling`` above 1, and then calls no output head.

    Args:
      wanted: False: nothing is collected, and nothing replaced.
      heads: False: output heads are not applied, and decoders return what they would give them.
      kept: positions that output heads are applied to; None: all of them.
    """
    from maxtext.layers.nnx_decoders import NNXDecoder

    found: list[jax.Array] = []
    stock = NNXDecoder.apply_output_head

    def apply(
        self: Any,
        shared_embedding: Any,
        y: jax.Array,
        deterministic: bool,
        model_mode: str,
        normalize_y: bool = True,
    ) -> Any:
        if normalize_y:  # not of multi-token prediction, which has norms of its own
            found.append(y)
            y = y if kept is None else kept.take(y)
        if not heads:
            return y
        return stock(self, shared_embedding, y, deterministic, model_mode, normalize_y)

    if wanted:
        NNXDecoder.apply_output_head = apply
    try:
        yield found
    finally:
        NNXDecoder.apply_output_head = stock


def features(model: Any, hidden_bte: jax.Array) -> jax.Array:
    """Returns the factors of the output head's weights: [rows, length, features].

    Args:
      model: MaxText's ``Transformer``.
      hidden_bte: output of its last layer.
    """
    return model.decoder.decoder_norm(hidden_bte)


def head_outputs(
    model: Any, hidden_bte: jax.Array, targets_bt: jax.Array, temperature: Temperature
) -> TokenOutputs:
    """Returns log-prob of the targets and entropy, in ``num_vocab_tiling`` tiles; traced by JAX.

    Args:
      model: MaxText's ``Transformer``.
      hidden_bte: output of its last layer.
      targets_bt: int32 [rows, length].
      temperature: see ``vocabulary.dense_outputs``.

    Raises:
      ConfigError: the head has more than one array of weights, or is not MaxText's own.
    """
    from maxtext.layers.nnx_decoders import NNXDecoder
    from maxtext.utils.sharding import create_sharding

    config, mesh, decoder = model.config, model.mesh, model.decoder
    tiles, rules = config.num_vocab_tiling, config.logical_axis_rules
    if not isinstance(decoder, NNXDecoder):
        raise ConfigError("num_vocab_tiling", tiles, f"must be 1 with a {type(decoder).__name__}")
    tied = config.logits_via_embedding
    graph, state = nnx.split(model.token_embedder if tied else decoder.logits_dense)
    arrays, structure = jax.tree.flatten(state)
    if len(arrays) != 1:
        reason = f"must be 1 with an output head of several arrays: {', '.join(map(str, state))}"
        raise ConfigError("num_vocab_tiling", tiles, reason)
    weights = arrays[0]
    axis, tile_axes = (0, ("vocab", None)) if tied else (1, (None, "vocab"))

    def placed(array: jax.Array, *axes: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(array, create_sharding(mesh, axes, rules))

    def logits_btw(hidden_bte: jax.Array, tile: jax.Array) -> jax.Array:
        part = nnx.merge(graph, jax.tree.unflatten(structure, [placed(tile, *tile_axes)]))
        stand_in = SimpleNamespace(
            config=config, mesh=mesh, logits_dense=part, dropout=lambda y, deterministic: y
        )
        logits_btw = NNXDecoder.apply_output_head(
            stand_in, part, hidden_bte, True, "train", normalize_y=False
        )
        return placed(logits_btw, *_ROWS_AND_LENGTH, "activation_vocab")

    # Every tile needs all features of a token: gathered here they are gathered once.
    hidden_bte = placed(decoder.decoder_norm(hidden_bte), *_ROWS_AND_LENGTH, None)
    shards = _shards(weights.shape[axis], create_sharding(mesh, ("vocab",), rules))
    return tiled_outputs(
        Head(logits_btw, axis, tiles, shards), hidden_bte, weights, targets_bt, temperature
    )


def _shards(vocabulary: int, sharding: jax.sharding.NamedSharding) -> int:
    """Returns the parts into which the mesh divides the vocabulary; 1 if they would be uneven."""
    axes = sharding.spec[0] if sharding.spec else None
    names = (axes,) if isinstance(axes, str) else axes or ()
    shards = math.prod(sharding.mesh.shape[name] for name in names)
    return shards if vocabulary % shards == 0 else 1
