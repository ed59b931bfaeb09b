"""The properties in which models of the convertible families differ.

All of them are decoders with RMSNorm, attention with rotary positions and grouped keys and values,
and a gated MLP. Llama, Mistral, Qwen2 and Qwen3 differ in sizes, biases and norms of query and key.
Mixtral and Qwen3-MoE have experts instead of the MLP. Gemma 2 and Gemma 3 have GELU, norms on both
sides of each block, norm weights that count from zero, and layers with a sliding window.

MaxText has several decoder blocks for the Llama-shaped layer. ``llama2`` and ``mistral`` expect
1 / sqrt(head width) inside the query kernel, ``qwen2`` and ``qwen3`` multiply by it themselves. A
converted model gets one of the latter two: its kernels are then exactly the tensors of the source,
which no rounding changes on the way in or out, and Adam moves the query kernel as it does elsewhere
(inside a kernel that is 8 times smaller the same learning rate would be 8 times larger). Mixtral
gets ``qwen3_moe`` for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rope = Literal["default", "linear", "llama3"]
Block = Literal["llama2", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "gemma3"]
LLAMA3_FACTOR = 8.0
"""MaxText's ``rope_type: llama3.1`` divides low frequencies by it; see ``rope_scaling``."""
# What else it computes with; its keys cannot say anything else.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA3_PERIOD = 6
"""Gemma 3: of so many layers in a row the last has no window."""
GEMMA_EPSILON = 1e-6
"""The epsilon of the norms in MaxText's Gemma layers; no key changes it."""

_QUERY_HOLDS_HEAD_WIDTH = ("llama2", "mistral", "mixtral")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model of one of the supported families.

    Attributes:
      family: name of the architecture in a config.json, such as LlamaForCausalLM.
      block: MaxText's ``decoder_block``.
      layers: their number.
      width: of the residual stream (hidden_size).
      heads: query heads.
      kv_heads: key and value heads; divides ``heads``.
      head_dim: width of a head; even.
      mlp_width: width inside the MLP, or inside one expert.
      vocab_size: rows of the embedding.
      tied: the output head is the embedding.
      qkv_bias: query, key and value have biases.
      qk_norm: query and key are normalised per head.
      norm_epsilon: of every RMSNorm.
      rope_theta: base of the rotary positions.
      rope: their scaling: none, by one factor, or as Llama 3.1 (``LLAMA3``).
      rope_factor: of ``linear`` and ``llama3``.
      positions: longest sequence that the model is made for (max_position_embeddings).
      experts: number of experts in a layer; 0: a plain MLP.
      experts_per_token: how many of them a token is sent to; their weights sum to 1.
      window: tokens that a layer with a sliding window sees; 0: no layer has one.
      local_rope_theta: base of the rotary positions in layers with a window; 0: ``rope_theta``.
      query_scalar: attention logits are divided by its root; 0: by that of ``head_dim``.
      attention_cap: attention logits x become cap * tanh(x / cap); 0: they stay.
      logits_cap: the same of the model's logits.
    """

    family: str
    block: Block
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
    experts: int = 0
    experts_per_token: int = 0
    window: int = 0
    local_rope_theta: int = 0
    query_scalar: float = 0.0
    attention_cap: float = 0.0
    logits_cap: float = 0.0

    @property
    def is_gemma(self) -> bool:
        """GELU, norm weights that count from zero, a scaled embedding, and windows."""
        return self.block in ("gemma2", "gemma3")

    @property
    def query_factor(self) -> float:
        """The factor that MaxText's query kernel holds besides the tensor of the source."""
        if self.block == "gemma2":
            return (self.query_scalar or self.head_dim) ** -0.5
        return self.head_dim**-0.5 if self.block in _QUERY_HOLDS_HEAD_WIDTH else 1.0

    @property
    def embedding_factor(self) -> float:
        """The factor that MaxText's embedding holds besides the tensor of the source."""
        return self.width**0.5 if self.is_gemma else 1.0
