"""MaxText's keys whose values RL cannot train with, or that make MaxText itself fail later."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlax_plugin.base.errors import ConfigError, alternatives

_Rejection = tuple[str, Callable[[Any], bool], str]


def _above(limit: float) -> Callable[[Any], bool]:
    """Returns a test for numbers above the limit; pydantic rejects other types itself."""
    return lambda value: isinstance(value, int | float) and value > limit


# What would bypass the RL loss, its batches or its metrics. Looked at before MaxText's own
# validation, which asks JAX for devices.
_REJECTED: tuple[_Rejection, ...] = (
    ("dropout_rate", _above(0), "must be 0: rollouts are generated without dropout"),
    ("training_objective", lambda v: v == "block_diffusion", "must be causal_lm"),
    ("attention_type", lambda v: v == "block_diffusion", "must be causal"),
    ("dataset_type", lambda v: v == "grain", "must not be grain: MaxText would checkpoint it"),
    ("enable_diloco", bool, "must be false: DiLoCo has a train step of its own"),
    ("elastic_enabled", bool, "must be false: an elastic restart would skip the RL loss"),
    ("use_dpo", bool, "must be false: the objective is chosen under rlax.objective"),
    ("use_multimodal", bool, "must be false: batches hold tokens only"),
    ("use_tunix_gradient_accumulation", bool, "must be false: it averages means"),
    ("enable_rampup_batch_size", bool, "must be false: the batch is rlax.rollouts' groups"),
    ("expansion_factor_real_data", _above(0), "must be -1: every host feeds its rows"),
    ("reuse_example_batch", bool, "must be 0: every step trains on its own batch"),
    ("compiled_trainstep_file", bool, "must be empty: that step was compiled with another loss"),
    ("eval_interval", _above(0), "must be -1: evaluation is rlax.evaluation's"),
    ("z_loss_multiplier", _above(0), "must be 0: it regularises the cross-entropy only"),
    ("ici_context_parallelism", _above(1), "must be 1: it would reorder MaxText's arrays"),
    ("dcn_context_parallelism", _above(1), "must be 1: it would reorder MaxText's arrays"),
)
# MaxText takes any number for these, and any name of a kernel, and stumbles over them later.
_AT_LEAST_ONE = (
    "steps",
    "max_target_length",
    "vocab_size",
    "base_emb_dim",
    "base_num_decoder_layers",
    "base_num_query_heads",
    "base_num_kv_heads",
    "head_dim",
)
_KERNELS = (
    "autoselected",
    "cudnn_flash_jax",
    "cudnn_flash_te",
    "dot_product",
    "flash",
    "paged",
    "vllm_batched_rpa",
    "vllm_rpa",
)
# With ``num_vocab_tiling`` above 1, in addition.
_REJECTED_TILED: tuple[_Rejection, ...] = (
    ("shard_mode", lambda v: v == "explicit", "must be auto with num_vocab_tiling above 1"),
    (
        "parameter_memory_host_offload",
        bool,
        "must be false with num_vocab_tiling above 1: each tile would be fetched from the host",
    ),
    ("vocab_tiling_ag_once", bool, "must be false: tiles lie along the vocabulary, not the batch"),
)
# With ``lora.enable_lora``, in addition.
_REJECTED_ADAPTED: tuple[_Rejection, ...] = (
    ("quantization", bool, "must be empty with lora.enable_lora"),
    ("use_qwix_quantization", bool, "must be false with lora.enable_lora"),
    ("lora_input_adapters_path", bool, "must be empty with lora.enable_lora"),
    ("routed_bias_update_rate", _above(0), "must be 0 with lora.enable_lora: it changes the base"),
    ("use_qk_clip", bool, "must be false with lora.enable_lora: it changes the base"),
    ("ici_pipeline_parallelism", _above(1), "must be 1 with lora.enable_lora"),
    ("dcn_pipeline_parallelism", _above(1), "must be 1 with lora.enable_lora"),
    ("parameter_memory_host_offload", bool, "must be false with lora.enable_lora"),
    ("shard_optimizer_over_data", bool, "must be false with lora.enable_lora"),
    ("shard_mode", lambda v: v == "explicit", "must be auto with lora.enable_lora"),
    (
        "source_checkpoint_layout",
        lambda v: v != "orbax",
        "must be orbax with lora.enable_lora: rlax convert makes such a checkpoint",
    ),
)
_UNSUPPORTED = ("lora_weight_qtype", "lora_tile_size")
_ADAPTER_KEYS = ("lora_rank", "lora_alpha", "lora_module_path", "lora_restore_path", *_UNSUPPORTED)


def rejections(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yields an error for every key that has such a value."""
    tiled = _above(1)(values.get("num_vocab_tiling"))
    for key, is_bad, reason in _REJECTED + (_REJECTED_TILED if tiled else ()):
        value = values.get(key)
        if value is not None and is_bad(value):
            yield ConfigError(key, value, reason)
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            yield ConfigError(key, value, "must be a finite number")
    for key in _AT_LEAST_ONE:
        if isinstance(value := values.get(key), int) and value < 1:
            yield ConfigError(key, value, "must be at least 1")
    kernel = values.get("attention")
    if isinstance(kernel, str) and kernel not in _KERNELS:
        yield ConfigError("attention", kernel, alternatives(kernel, _KERNELS))
    if values.get("hardware") == "cpu" and kernel not in (None, "autoselected", "dot_product"):
        yield ConfigError("attention", kernel, "must be dot_product with hardware: cpu")
    rate, length = values.get("per_device_batch_size"), values.get("max_target_length")
    if tiled and isinstance(rate, float | int) and isinstance(length, int):
        tiles, tokens = values["num_vocab_tiling"], int(rate * length)
        if tokens % tiles:
            reason = f"must divide per_device_batch_size * max_target_length = {tokens}"
            yield ConfigError("num_vocab_tiling", tiles, reason)
    for network in ("ici", "dcn"):
        rest = [k for k, v in values.items() if k.startswith(f"{network}_") and v == -1]
        if len(rest) > 1:
            reason = f"only one of {', '.join(rest)} may be -1, which takes the remaining devices"
            yield ConfigError(rest[-1], -1, reason)
    if values.get("use_indexer") and not values.get("indexer_sparse_training"):
        yield ConfigError(
            "indexer_sparse_training",
            False,
            "must be true with use_indexer, which has no loss otherwise",
        )
    yield from _of_adapters(values)
    if isinstance(rate, float | int) and rate < 1:
        yield ConfigError(
            "per_device_batch_size", rate, "must be at least 1, because a smaller value drops rows"
        )


def _of_adapters(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    lora = values.get("lora")
    if not isinstance(lora, Mapping):
        return
    if not lora.get("enable_lora"):
        for name in _ADAPTER_KEYS:
            if value := lora.get(name):
                reason = "has no effect unless lora.enable_lora is true: all weights would train"
                yield ConfigError(f"lora.{name}", value, reason)
        return
    for name in ("lora_rank", "lora_alpha"):
        value = lora.get(name, 0)
        if isinstance(value, int | float) and value <= 0:
            yield ConfigError(f"lora.{name}", value, "must be above 0 with lora.enable_lora")
    for name in _UNSUPPORTED:
        if value := lora.get(name):
            reason = "must not be set: MaxText's train step fails with a base of 4 bits"
            yield ConfigError(f"lora.{name}", value, reason)
    for key, is_bad, reason in _REJECTED_ADAPTED:
        value = values.get(key)
        if value is not None and is_bad(value):
            yield ConfigError(key, value, reason)
