"""The properties in which models of the convertible families differ.

All of them are decoders with RMSNorm, attention with rotary positions and grouped keys and values,
and an MLP with a gate. Llama, Mistral, Qwen2 and Qwen3 differ in sizes, biases and norms of query
and key. Mixtral and Qwen3-MoE have experts instead of the MLP. Gemma 2 and Gemma 3 have GELU, norms
on both sides of each block, norm weights that count from zero, and layers with a sliding window.

MaxText has several decoder blocks for the Llama-shaped layer. ``llama2`` and ``mistral`` expect
1 / sqrt(head width) inside the query kernel, ``qwen2`` and ``qwen3`` multiply by it themselves. A
converted model gets ``qwen2`` or ``qwen3``. Its kernels are then exactly the tensors of the source,
without rounding on the way in or out, and Adam updates the query kernel as it does elsewhere (in a
kernel that is 8 times smaller, the same learning rate would have 8 times the effect). Mixtral gets
``qwen3_moe`` for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rope = Literal["default", "linear", "llama3"]
Block = Literal["llama2", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "gemma3"]
LLAMA3_FACTOR = 8.0
"""The divisor of low frequencies under MaxText's ``rope_type: llama3.1``; see ``rope_scaling``."""
# What else it computes with; its keys cannot say anything else.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA3_PERIOD = 6
"""Gemma 3: every sixth layer has no window."""
GEMMA_EPSILON = 1e-6
"""The epsilon of the norms in MaxText's Gemma layers; no key changes it."""

_QUERY_HOLDS_HEAD_WIDTH = ("llama2", "mistral", "mixtral")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A model of one of the supported families.

    Attributes:
      family: name of the architecture in a config.json, such as LlamaForCausalLM.
      block: MaxText's ``decoder_block``.
      layers: number of layers.
      width: width of the residual stream (hidden_size).
      heads: number of query heads.
      kv_heads: number of key and value heads; divides ``heads``.
      head_dim: width of a head; even.
      mlp_width: width inside the MLP, or inside one expert.
      vocab_size: rows of the embedding.
      tied: True if the output head is the embedding.
      normalised_head: True if MaxText divides the logits of a tied head by sqrt(width), as it does
        for a model of its own; the source's last norm then holds this factor. Never of a Gemma.
      qkv_bias: True if query, key and value have biases.
      qk_norm: True if query and key are normalised per head.
      norm_epsilon: epsilon of every RMSNorm.
      rope_theta: base of the rotary positions.
      rope: scaling of the rotary positions: none, by one factor, or as Llama 3.1 (``LLAMA3``).
      rope_factor: scaling factor of ``linear`` and ``llama3``.
      positions: longest sequence that the model is made for (max_position_embeddings).
      experts: number of experts in a layer; 0: a plain MLP.
      experts_per_token: number of experts that each token is sent to; their weights sum to 1.
      window: tokens that a layer with a sliding window sees; 0: no layer has one.
      local_rope_theta: base of the rotary positions in layers with a window; 0: ``rope_theta``.
      query_scalar: its square root divides the attention logits; 0: ``head_dim`` is used instead.
      attention_cap: attention logits x become cap * tanh(x / cap); 0: they stay.
      logits_cap: the same cap for the model's logits.
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
    normalised_head: bool = False
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
        """True for Gemma: GELU, norm weights counted from zero, scaled embedding, windows."""
        return self.block in ("gemma2", "gemma3")

    @property
    def query_factor(self) -> float:
        """The factor between MaxText's query kernel and the tensor of the source."""
        if self.block == "gemma2":
            return (self.query_scalar or self.head_dim) ** -0.5
        return self.head_dim**-0.5 if self.block in _QUERY_HOLDS_HEAD_WIDTH else 1.0

    @property
    def embedding_factor(self) -> float:
        """The factor between MaxText's embedding and the tensor of the source."""
        return self.width**0.5 if self.is_gemma else 1.0

    @property
    def last_norm_factor(self) -> float:
        """The factor between MaxText's scale of the last norm and the tensor of the source."""
        return self.width**0.5 if self.normalised_head else 1.0
