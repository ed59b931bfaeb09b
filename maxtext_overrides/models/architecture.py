"""What distinguishes one Llama-shaped model from another, and MaxText's keys for it.

Llama, SmolLM2, Mistral, Qwen2 and Qwen3 share one layer: RMSNorm, attention with rotary positions
and grouped keys and values, RMSNorm, and a gated MLP with SiLU. They differ in sizes, in whether
query, key and value have biases, in whether query and key are normalised, and in the positions.

MaxText has several decoder blocks for that layer. ``llama2`` and ``mistral`` expect 1 / sqrt(head
width) inside the query kernel, ``qwen2`` and ``qwen3`` multiply by it themselves. A converted model
gets one of the latter two: its kernels are then exactly the tensors of the source, which no
rounding changes on the way in or out, and Adam moves the query kernel as it does elsewhere (inside
a kernel that is 8 times smaller the same learning rate would be 8 times larger).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rlax_plugin.errors import ConfigError

Rope = Literal["default", "linear", "llama3"]
# What MaxText's ``rope_type: llama3.1`` computes; its keys cannot say anything else.
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_SCALED_QUERY = ("llama2", "mistral")
_BLOCKS = (*_SCALED_QUERY, "qwen2", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A Llama-shaped model.

    Attributes:
      family: name of the architecture in a config.json, such as LlamaForCausalLM.
      layers: their number.
      width: of the residual stream (hidden_size).
      heads: query heads.
      kv_heads: key and value heads; divides ``heads``.
      head_dim: width of a head; even.
      mlp_width: width inside the MLP (intermediate_size).
      vocab_size: rows of the embedding.
      tied: the output head is the embedding.
      qkv_bias: query, key and value have biases.
      qk_norm: query and key are normalised per head.
      norm_epsilon: of every RMSNorm.
      rope_theta: base of the rotary positions.
      rope: their scaling: none, by one factor, or as Llama 3.1 (``LLAMA3``).
      rope_factor: of ``linear``.
      positions: longest sequence that the model is made for (max_position_embeddings).
      scaled_query: MaxText's query kernel holds 1 / sqrt(head_dim).
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_epsilon: float
    rope_theta: int
    rope: Rope = "default"
    rope_factor: float = 1.0
    positions: int
    scaled_query: bool = False

    def maxtext_keys(self) -> dict[str, Any]:
        """MaxText's keys of the model, without how it is trained or stored."""
        keys: dict[str, Any] = {
            "decoder_block": "qwen3" if self.qk_norm else "qwen2",
            "base_num_decoder_layers": self.layers,
            "base_emb_dim": self.width,
            "base_num_query_heads": self.heads,
            "base_num_kv_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "base_mlp_dim": self.mlp_width,
            "mlp_activations": ["silu", "linear"],
            "vocab_size": self.vocab_size,
            "logits_via_embedding": self.tied,
            "normalize_embedding_logits": False,
            "attention_bias": self.qkv_bias,
            "use_qk_norm": self.qk_norm,
            "normalization_layer_epsilon": self.norm_epsilon,
            "rope_max_timescale": self.rope_theta,
        }
        if self.rope == "linear":
            keys["rope_linear_scaling_factor"] = self.rope_factor
        elif self.rope == "llama3":
            keys["rope_type"] = "llama3.1"
        return keys


def of_maxtext(config: Any) -> Architecture:
    """The architecture of a MaxText config, also of one that was not converted.

    Args:
      config: MaxText's, validated, as ``config.loading.load`` returns it.

    Raises:
      ConfigError: names the key with which the model is not Llama-shaped.
    """
    block = _text(config.decoder_block)
    if block not in _BLOCKS:
        reason = f"is not Llama-shaped; supported: {', '.join(_BLOCKS)}"
        raise ConfigError("decoder_block", block, reason)
    for key, right in _ONLY.items():
        value = getattr(config, key)
        if (list(value) if isinstance(value, tuple) else value) != right:
            reason = f"is not Llama-shaped; must be {right!r}"
            raise ConfigError(key, value, reason)
    rope = _text(config.rope_type)
    if rope not in ("default", "llama3.1"):
        raise ConfigError("rope_type", rope, "is not Llama-shaped; supported: default, llama3.1")
    tied = bool(config.logits_via_embedding)
    if tied and config.normalize_embedding_logits:
        raise ConfigError("normalize_embedding_logits", True, "is not Llama-shaped; must be false")
    llama3 = rope == "llama3.1" or config.model_name.startswith("llama3.1")
    linear = config.rope_linear_scaling_factor != 1.0
    qk_norm = block.startswith("qwen") and config.use_qk_norm
    qkv_bias = block == "qwen2" and config.attention_bias
    if qk_norm and qkv_bias:
        reason = "no family has biases of query and key and also normalises them (use_qk_norm)"
        raise ConfigError("attention_bias", True, reason)
    family = "MistralForCausalLM" if block == "mistral" else "LlamaForCausalLM"
    if qk_norm or qkv_bias:
        family = "Qwen3ForCausalLM" if qk_norm else "Qwen2ForCausalLM"
    return Architecture(
        family=family,
        layers=config.num_decoder_layers,
        width=config.emb_dim,
        heads=config.num_query_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        mlp_width=config.mlp_dim,
        vocab_size=config.vocab_size,
        tied=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        norm_epsilon=config.normalization_layer_epsilon,
        rope_theta=config.rope_max_timescale,
        rope="llama3" if llama3 else "linear" if linear else "default",
        rope_factor=config.rope_linear_scaling_factor,
        positions=config.max_target_length,
        scaled_query=block in _SCALED_QUERY,
    )


def _text(value: Any) -> str:
    """Of an enumeration's member or a plain text."""
    return str(getattr(value, "value", value))


# The only values of MaxText's keys that a config.json of these families can express.
_ONLY: dict[str, Any] = {
    "mlp_activations": ["silu", "linear"],
    "mlp_bias": False,
    "fused_qkv": False,
    "fused_mlp": False,
    "num_experts": 1,
    "attention_sink": False,
    "trainable_position_size": -1,
    "use_untrainable_positional_embedding": False,
    "rope_min_timescale": 1,
    "attn_logits_soft_cap": None,
    "final_logits_soft_cap": None,
}
