"""Converts an ``Architecture`` to MaxText's keys, and a MaxText config to an architecture."""

from __future__ import annotations

from typing import Any, get_args

from maxtext_overrides.models.architecture import (
    GEMMA_EPSILON,
    LLAMA3_FACTOR,
    Architecture,
    Block,
    Rope,
)
from rlax_plugin.base.errors import ConfigError

_BLOCKS: tuple[Block, ...] = get_args(Block)
_FAMILIES: dict[Block, str] = {
    "llama2": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
# MaxText divides Gemma 3's attention logits by a root that follows from the model's name.
_OF_HEAD, _OF_WIDTH = "gemma3-4b", "gemma3-27b"
_BY_NAME = {_OF_HEAD: _OF_HEAD, "gemma3-12b": _OF_HEAD, _OF_WIDTH: _OF_WIDTH}
# The only values that a config.json of these families can express.
_ONLY: dict[str, Any] = {
    "mlp_bias": False,
    "fused_qkv": False,
    "fused_mlp": False,
    "attention_sink": False,
    "attention_type": "global",
    "trainable_position_size": -1,
    "use_untrainable_positional_embedding": False,
    "rope_min_timescale": 1,
    "rope_use_scale": True,
}
_OF_EXPERTS: dict[str, Any] = {
    "shared_experts": 0,
    "routed_bias": False,
    "routed_score_func": "",
    "capacity_factor": -1.0,  # above 0 tokens are dropped
}
_WITHOUT_GEMMA: dict[str, Any] = {
    "attn_logits_soft_cap": 0.0,
    "final_logits_soft_cap": 0.0,
}


def maxtext_keys(model: Architecture) -> dict[str, Any]:
    """Returns MaxText's keys of a model, without those of training and storage."""
    keys: dict[str, Any] = {
        "decoder_block": model.block,
        # MaxText's layer of Gemma 2 is a pair: one with a window and one without.
        "base_num_decoder_layers": model.layers // (2 if model.block == "gemma2" else 1),
        "base_emb_dim": model.width,
        "base_num_query_heads": model.heads,
        "base_num_kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "base_mlp_dim": model.mlp_width,
        "mlp_activations": ["gelu" if model.is_gemma else "silu", "linear"],
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied,
        "attention_bias": model.qkv_bias,
        "use_qk_norm": model.qk_norm,
        "normalization_layer_epsilon": model.norm_epsilon,
        "rope_max_timescale": model.rope_theta,
    }
    if model.tied:
        keys["normalize_embedding_logits"] = model.is_gemma or model.normalised_head
    if model.rope == "linear":
        keys["rope_linear_scaling_factor"] = model.rope_factor
    elif model.rope == "llama3":
        keys["rope_type"] = "llama3.1"
        if model.rope_factor != LLAMA3_FACTOR:
            keys["rope_linear_scaling_factor"] = model.rope_factor
    if model.experts:
        keys |= {
            "base_moe_mlp_dim": model.mlp_width,
            "num_experts": model.experts,
            "num_experts_per_tok": model.experts_per_token,
            "norm_topk_prob": True,
        }
    if model.is_gemma:
        keys |= {
            "use_post_attn_norm": True,
            "use_post_ffw_norm": True,
            "sliding_window_size": model.window,
            "attn_logits_soft_cap": model.attention_cap,
            "final_logits_soft_cap": model.logits_cap,
        }
    if model.block == "gemma3":
        by_head = model.query_scalar == model.head_dim
        keys = {
            "model_name": _OF_HEAD if by_head else _OF_WIDTH,
            "override_model_config": True,
            "rope_linear_scaling_factor": 1.0,  # of the named model it is another one
            **keys,
            "local_rope_max_timescale": model.local_rope_theta,
        }
    return keys


def of_maxtext(config: Any) -> Architecture:
    """Returns the architecture of a MaxText config, whether or not it was converted.

    Args:
      config: MaxText's, validated, as ``config.loading.load`` returns it.

    Raises:
      ConfigError: the model is of no supported family; names the key that shows it.
    """
    block = _text(config.decoder_block)
    if block not in _BLOCKS:
        reason = f"has no counterpart in transformers here; supported: {', '.join(_BLOCKS)}"
        raise ConfigError("decoder_block", block, reason)
    is_gemma, has_experts = block.startswith("gemma"), block in ("mixtral", "qwen3_moe")
    wanted = _ONLY | {"mlp_activations": ["gelu" if is_gemma else "silu", "linear"]}
    if is_gemma:
        wanted |= {"use_post_attn_norm": True, "use_post_ffw_norm": True}
        wanted |= {"normalization_layer_epsilon": GEMMA_EPSILON, "logits_via_embedding": True}
    else:
        wanted |= _WITHOUT_GEMMA
    wanted |= _OF_EXPERTS if has_experts else {"num_experts": 1}
    if block != "gemma3":
        wanted["local_rope_max_timescale"] = -1
    for key, right in wanted.items():
        value = _plain(getattr(config, key))
        if value != right and not (right == 0.0 and value is None):
            reason = f"must be {right!r}, as nothing else has a counterpart in transformers"
            raise ConfigError(key, value, reason)
    tied, normalised = bool(config.logits_via_embedding), bool(config.normalize_embedding_logits)
    if tied and is_gemma and not normalised:
        reason = f"must be true with decoder_block {block} and a tied head"
        raise ConfigError("normalize_embedding_logits", False, reason)
    rope, factor = _rope(config)
    qk_norm = block == "gemma3" or (block.startswith("qwen") and config.use_qk_norm)
    qkv_bias = block == "qwen2" and config.attention_bias
    pairs = 2 if block == "gemma2" else 1
    return Architecture(
        family=_family(block, qk_norm, qkv_bias),
        block=block,
        layers=config.num_decoder_layers * pairs,
        width=config.emb_dim,
        heads=config.num_query_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.moe_mlp_dim if block == "qwen3_moe" else config.mlp_dim,
        vocab_size=config.vocab_size,
        tied=tied,
        normalised_head=tied and normalised and not is_gemma,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        norm_epsilon=config.normalization_layer_epsilon,
        rope_theta=config.rope_max_timescale,
        rope=rope,
        rope_factor=factor,
        positions=config.max_target_length,
        experts=config.num_experts if has_experts else 0,
        experts_per_token=config.num_experts_per_tok if has_experts else 0,
        window=config.sliding_window_size if is_gemma else 0,
        local_rope_theta=max(config.local_rope_max_timescale, 0) if block == "gemma3" else 0,
        query_scalar=_query_scalar(config, block),
        attention_cap=(config.attn_logits_soft_cap or 0.0) if is_gemma else 0.0,
        logits_cap=(config.final_logits_soft_cap or 0.0) if is_gemma else 0.0,
    )


def _rope(config: Any) -> tuple[Rope, float]:
    """Returns (kind, factor) of the rotary positions."""
    rope, factor = _text(config.rope_type), config.rope_linear_scaling_factor
    if rope not in ("default", "llama3.1"):
        reason = "has no counterpart in transformers here; supported: default, llama3.1"
        raise ConfigError("rope_type", rope, reason)
    if rope == "llama3.1" or config.model_name.startswith("llama3.1"):
        return "llama3", factor if factor != 1.0 else LLAMA3_FACTOR
    return ("linear", factor) if factor != 1.0 else ("default", 1.0)


def _family(block: Block, qk_norm: bool, qkv_bias: bool) -> str:
    if block == "qwen3_moe":
        # Mixtral is Qwen3-MoE without norms of query and key.
        return "Qwen3MoeForCausalLM" if qk_norm else "MixtralForCausalLM"
    if block not in _FAMILIES:
        named = "Qwen3ForCausalLM" if qk_norm else "Qwen2ForCausalLM"
        if qk_norm and qkv_bias:
            reason = "no family has biases of query and key and also normalises them (use_qk_norm)"
            raise ConfigError("attention_bias", True, reason)
        return named if qk_norm or qkv_bias else "LlamaForCausalLM"
    return _FAMILIES[block]


def _query_scalar(config: Any, block: Block) -> float:
    """Returns the number whose root divides the attention logits of a Gemma; 0 for other models."""
    if block == "gemma2":
        return float(config.head_dim)  # any other one is inside the kernel
    if block != "gemma3":
        return 0.0
    if (named := _BY_NAME.get(config.model_name)) is None:
        reason = f"must be one of {', '.join(_BY_NAME)} with decoder_block gemma3"
        raise ConfigError("model_name", config.model_name, reason)
    return float(config.head_dim if named == _OF_HEAD else config.emb_dim // config.num_query_heads)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else getattr(value, "value", value)


def _text(value: Any) -> str:
    """Returns the text of an enumeration's member or of a plain value."""
    return str(getattr(value, "value", value))
