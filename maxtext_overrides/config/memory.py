"""Estimates the memory a model needs from the shapes of its variables, without allocating any.

Numbers are bytes over all devices of a process, before padding and before what XLA adds.
Activations inside a layer are not included, as they depend on the rematerialisation and on the
compiler. ``docs/scale.md`` compares the numbers with compiled programs.

Of a trainer, all devices share one copy of the model; with data parallelism every replica holds
another, which is not counted. Of a worker, the copies on its mesh are counted.

The upstream symbols are in ``upstream/declared.toml``. A change there is no reason to reject
a run, because only the estimate fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core.spmd import logical_axis_rules

from maxtext_overrides import adapters, int8_weights
from maxtext_overrides.config.copies import Held, MeshCopies
from maxtext_overrides.config.loading import Config
from maxtext_overrides.kept_positions import logits_per_row
from maxtext_overrides.rounding import version_like
from maxtext_overrides.upstream.lean_imports import unavailable
from maxtext_overrides.variables import published

# With adapters, a copy of the base is there until the first step begins, and not afterwards.
FIRST_BASE = "base of the first version, beyond what a step needs"


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """The memory that a trainer needs.

    Attributes:
      parameters: number of parameters, without adapters.
      trained: bytes of the trained parameters: of all, or of adapters.
      weights: bytes of the weights.
      version: bytes of the first weight version.
      published: bytes that each other version writes: all, or the adapters.
      gradients: bytes; with accumulation those of a micro-batch and their sum.
      optimizer: bytes of the optimizer's state.
      logits: bytes of one micro-batch's logits, or of one tile of them, on as many devices as the
        config counts: one if it was loaded with ``load_to_check``.
      logits_positions: number of positions of a row that they are of.
      layer_inputs: bytes of the inputs of all layers for one micro-batch, on as many devices; every
        rematerialisation keeps at least these for the backward pass.
      laid_out: bytes of the copy of the weights in the dtype and order of arithmetic, which XLA
        makes of all layers of a scan before the scan.
      gathered: bytes that each of several devices needs for weights that are sharded: those of one
        layer when they are gathered, as many for their gradient before it is scattered, and the
        largest other matrix.
      shapes: variable of a weight version -> its shape.
    """

    parameters: int
    trained: int
    weights: int
    version: int
    published: int
    gradients: int
    optimizer: int
    logits: int
    logits_positions: int
    layer_inputs: int
    laid_out: int
    gathered: int
    shapes: Mapping[str, tuple[int, ...]]


def of_training(config: Config, rounds: bool = False, whole_rows: bool = False) -> TrainingMemory:
    """Returns the memory of the train state and the logits, by tracing the model's forward pass.

    Args:
      rounds: see ``rounding.version_dtypes``.
      whole_rows: True if logits are computed for all positions, as with demonstrations.

    Raises:
      Exception: MaxText's own, for a model that it cannot build or call; see
        ``config.loading.passed_on``.
    """
    model = abstract_model(config, "train")
    from maxtext.optimizers import optimizers
    from maxtext.utils import maxtext_utils

    graph, state = nnx.split(model)
    trained = nnx.LoRAParam if adapters.enabled(config) else nnx.Param
    parameters, weights = nnx.filter_state(state, trained), published(state)
    version = version_like(weights, config, rounds)
    each = adapters.of_adapters(version) if adapters.enabled(config) else version
    of_model = nnx.filter_state(state, nnx.All(nnx.Param, nnx.Not(nnx.LoRAParam)))
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    optimizer = optimizers.get_optimizer(config, schedule, model)
    positions = int(config.max_target_length) if whole_rows else _logits_positions(config)
    return TrainingMemory(
        parameters=sum(x.size for x in jax.tree.leaves(of_model)),
        trained=_bytes(parameters),
        weights=_bytes(weights),
        version=_bytes(version),
        published=_bytes(each),
        gradients=_bytes(parameters) * (2 if config.gradient_accumulation_steps > 1 else 1),
        optimizer=_bytes(jax.eval_shape(optimizer.init, parameters)),
        logits=_logits(config, graph, state, positions),
        logits_positions=positions,
        layer_inputs=_layer_inputs(config),
        laid_out=sum(_laid_out(config, weights).values()) if config.scan_layers else 0,
        gathered=_gathered(config, weights),
        shapes={name: tuple(value.shape) for name, value in weights.items()},
    )


@dataclass(frozen=True, slots=True)
class CriticMemory:
    """The memory that a critic needs; see ``trainer.value_model``.

    Attributes:
      parameters: number of trained parameters.
      weights: bytes of the parameters.
      gradients: bytes; with accumulation those of a micro-batch and their sum.
      layer_inputs: see ``TrainingMemory``.
    """

    parameters: int
    weights: int
    gradients: int
    layer_inputs: int


def of_critic(config: Config) -> CriticMemory:
    """Returns the memory of a critic.

    Raises:
      Exception: as ``of_training``.
    """
    model = abstract_model(config, "train")
    state = nnx.state(without_output_layer(model), nnx.Param)
    weights = _bytes(state)
    return CriticMemory(
        parameters=sum(x.size for x in jax.tree.leaves(state)) + int(config.emb_dim) + 1,
        weights=weights,
        gradients=weights * (2 if config.gradient_accumulation_steps > 1 else 1),
        layer_inputs=_layer_inputs(config),
    )


@dataclass(frozen=True, slots=True)
class DecodingMemory:
    """The memory that a worker needs.

    Attributes:
      version: bytes of a weight version.
      weights: the weights that samples are generated with, on the mesh.
      new: a weight version on the mesh.
      caches: the key-value caches of all slots.
      parts: bytes that a call of the decode loop needs besides, if several devices hold the same
        caches and each computes for a part of the slots. Before the loop XLA takes this part out of
        the caches; a step reads one such part and writes another. After the loop XLA gathers them.
      laid_out: the copy of the weights in the dtype and order of arithmetic, which XLA makes before
        the loop of decode steps; on a processor, ``layer_major`` avoids it.
      near: the part of the prompts' caches that a decode program copies if it attends to that part
        only.
    """

    version: int
    weights: Held
    new: Held
    caches: Held
    parts: int
    laid_out: Held
    near: Held


def of_decoding(
    config: Config, reach: int, rounds: bool = False, quantizes: bool = False
) -> DecodingMemory:
    """Returns the memory of a worker.

    Args:
      config: a worker's config, as ``maxengine_model`` takes it.
      reach: tokens of each prompt that a decode program copies; 0: none.
      rounds: see ``of_training``.
      quantizes: True if samples are generated with ``int8_weights``.

    Raises:
      ConfigError: see ``int8_weights.kernels``.
      Exception: as ``of_training``.
    """
    model = abstract_model(config, "autoregressive")
    state = nnx.state(model)
    weights = version_like(published(state), config, rounds)
    kernels = int8_weights.kernels(model, config) if quantizes else {}
    used = {name: int8_weights.like(weights[name], axes) for name, axes in kernels.items()}
    copies = MeshCopies(config, state)
    caches = {
        ".".join(map(str, path)): _bytes(cache)
        for path, cache in nnx.to_flat_state(nnx.filter_state(state, nnx.Cache))
    }
    laid_out = {} if config.hardware == "cpu" else _laid_out(config, weights)
    longest = int(config.max_prefill_predict_length)
    near = {n: size * reach // longest for n, size in caches.items() if "cached_prefill" in n}
    return DecodingMemory(
        version=_bytes(weights),
        weights=copies.held({name: _bytes(like) for name, like in (weights | used).items()}),
        new=copies.held({name: _bytes(like) for name, like in weights.items()}),
        caches=copies.held(caches),
        parts=2 * copies.in_parts(caches),
        laid_out=copies.held(laid_out),
        near=copies.held(near),
    )


# Variables that hold all layers of a scan, as ``decoder.layers.mlp.wo.kernel``.
_STACKED = re.compile(r"(^|\.)\w*layers\.")
_OF_LAYERS = re.compile(r"(^|\.)\w*layers(_\d+)?\.")  # unrolled ones are ``decoder.layers_0.``


def _laid_out(config: Config, weights: Mapping[str, Any]) -> dict[str, int]:
    """Returns the bytes of each matrix that is copied, in the dtype of arithmetic."""
    dtype = jnp.dtype(config.dtype)
    return {
        name: dtype.itemsize * like.size
        for name, like in _matrices(weights).items()
        if like.dtype != dtype or _STACKED.search(name)
    }


def _gathered(config: Config, weights: Mapping[str, Any]) -> int:
    matrices, layers = _matrices(weights), int(config.num_decoder_layers)
    sizes = {name: like.size for name, like in matrices.items() if not _OF_LAYERS.search(name)}
    layer = sum(like.size for name, like in matrices.items() if name not in sizes) // layers
    shards = max(1, int(config.ici_tensor_parallelism))
    return (max(sizes.values(), default=0) + 2 * layer) * jnp.dtype(config.dtype).itemsize // shards


def _matrices(weights: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: like
        for name, like in weights.items()
        if like.ndim > 1 and jnp.issubdtype(like.dtype, jnp.floating)
    }


def _layer_inputs(config: Config) -> int:
    tokens = int(config.micro_batch_size_to_train_on) * int(config.max_target_length)
    width = int(config.emb_dim) * jnp.dtype(config.dtype).itemsize
    return int(config.num_decoder_layers) * tokens * width


def _mesh(config: Config) -> jax.sharding.Mesh:
    """Returns a mesh of one device with MaxText's axis names; more devices have the same shapes."""
    axes = tuple(config.mesh_axes)
    return jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(axes)), axes)


def abstract_model(config: Config, mode: str) -> Any:
    """Returns a model whose variables have shapes and dtypes, and no arrays.

    Args:
      mode: MaxText's model mode, such as ``train``.

    Raises:
      Exception: as ``of_training``.
    """
    plain = config
    if config.hardware != "cpu":
        # Kernels of accelerators do not trace on a processor; they change no shape.
        plain = config.copy()
        plain.get_keys()["attention"] = "dot_product"
    return creation_of(plain, _mesh(plain), mode)[1]


def creation_of(config: Config, mesh: jax.sharding.Mesh, mode: str) -> tuple[Any, Any]:
    """Returns a function that makes a model, and the model with shapes, dtypes and shardings."""
    with unavailable("tensorflow", "google.cloud.aiplatform"):
        adapters.install(config.allow_untested)
        from maxtext.utils.model_creation_utils import create_nnx_abstract_model

    return create_nnx_abstract_model(config, mesh, model_mode=mode)


def without_output_layer(model: Any) -> Any:
    """Removes the output layer of a model of MaxText's, if it has one of its own; returns it."""
    if hasattr(model.decoder, "logits_dense"):
        del model.decoder.logits_dense
    return model


def _logits_positions(config: Config) -> int:
    """Returns the number of positions of a row whose logits a train step holds at once."""
    length = int(config.max_target_length)
    # Heads of multi-token prediction have logits for all positions, one head after the other.
    return length if config.mtp_num_layers else logits_per_row(config) or length


def _logits(config: Config, graph: Any, state: nnx.State, positions: int) -> int:
    """Returns the bytes of the logits of one micro-batch, or of one tile with vocabulary tiling.

    Args:
      positions: number of positions of a row that have logits.
    """
    shape = (int(config.micro_batch_size_to_train_on), int(config.max_target_length))
    tokens_bt = jax.ShapeDtypeStruct(shape, jnp.int32)

    def logits(state: nnx.State, tokens_bt: jax.Array) -> Any:
        return nnx.merge(graph, state, copy=True)(
            decoder_input_tokens=tokens_bt,
            decoder_positions=tokens_bt,
            decoder_segment_ids=tokens_bt,
            decoder_target_tokens=tokens_bt,
            enable_dropout=False,
        )

    with jax.set_mesh(_mesh(config)), logical_axis_rules(config.logical_axis_rules):
        found = jax.eval_shape(logits, state, tokens_bt)
    if config.num_vocab_tiling == 1:
        return _bytes(found) * positions // shape[1]
    # A tiled model returns none; one tile of float32 logits exists at a time.
    return shape[0] * positions * -(-int(config.vocab_size) // int(config.num_vocab_tiling)) * 4


def _bytes(tree: Any) -> int:
    """Returns the bytes of all arrays, without RNG keys."""
    return sum(
        x.size * x.dtype.itemsize
        for x in jax.tree.leaves(tree)
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    )
