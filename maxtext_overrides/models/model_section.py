"""Writes ``model.yml``: MaxText's keys of a converted model, each with its meaning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MEANING = {
    "model_name": "the model, as MaxText knows it; its own keys come from there",
    "override_model_config": "the keys below win over those of model_name",
    "decoder_block": "MaxText's name of the layer; of several it is one that keeps the weights as "
    "they are",
    "base_num_decoder_layers": "number of layers",
    "base_emb_dim": "width",
    "base_num_query_heads": "heads of attention",
    "base_num_kv_heads": "heads of keys and values",
    "head_dim": "width of a head",
    "base_mlp_dim": "width inside the MLP",
    "base_moe_mlp_dim": "width inside an expert",
    "num_experts": "experts in a layer",
    "num_experts_per_tok": "experts that a token is sent to",
    "norm_topk_prob": "whether the weights of these experts sum to 1",
    "mlp_activations": "of its gate and its other input",
    "vocab_size": "number of tokens",
    "logits_via_embedding": "whether the output head is the embedding",
    "normalize_embedding_logits": "whether logits of such a head are divided by sqrt(width)",
    "attention_bias": "of query, key and value",
    "use_qk_norm": "whether query and key are normalised",
    "normalization_layer_epsilon": "of every normalisation",
    "rope_max_timescale": "base of the rotary positions",
    "rope_linear_scaling_factor": "by which positions are divided; with rope_type llama3.1 only "
    "low frequencies",
    "local_rope_max_timescale": "base of the rotary positions in layers with a window",
    "sliding_window_size": "tokens that a layer with a window sees",
    "use_post_attn_norm": "whether there is a normalisation behind attention",
    "use_post_ffw_norm": "whether there is a normalisation behind the MLP",
    "attn_logits_soft_cap": "x becomes cap * tanh(x / cap) in attention; 0 for none",
    "final_logits_soft_cap": "the same of the model's logits",
    "rope_type": "how positions are scaled",
    "scan_layers": "whether all layers are one scanned layer; the checkpoint is stored so",
    "tokenizer_type": "of the files in tokenizer_path",
    "tokenizer_path": "tokenizer, chat template and config.json",
    "load_parameters_path": "the weights that training starts from",
}


def text_of(family: str, keys: Mapping[str, Any]) -> str:
    """Returns the content of the file.

    Args:
      family: the model's architecture.
      keys: MaxText's key -> value.
    """
    lines = [
        "# Written by `rlax convert`: MaxText's keys of a model, to be part of a run's config.",
        f"# `rlax init --model DIR` writes a whole config. The model: {family}.",
    ]
    # JSON is YAML, and names no number that YAML reads as text.
    for key, value in keys.items():
        meaning = f"  # {_MEANING[key]}" if key in _MEANING else ""
        lines.append(f"{key}: {_yaml(value)}{meaning}")
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    if isinstance(value, float):
        digits, _, exponent = repr(value).partition("e")
        # YAML 1.1 takes a number without a point for a text.
        return f"{digits}{'' if '.' in digits else '.0'}e{exponent}" if exponent else digits
    return json.dumps(value, ensure_ascii=False)
