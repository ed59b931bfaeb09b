"""A tiny GGUF file, as llama.cpp's converter writes one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny_models

# Characters of the byte-level alphabet, and what is merged of them.
ALPHABET = [*"abcdefghijklmnopqrstuvwxyzAS0123456789", "Ġ", "Ċ", ".", ":", "<", ">"]
MERGES = ["t h", "th e", "Ġ the", "Ġ 1"]
SPECIAL = ("<|end|>", "<|im_end|>")
TOKENS = [*SPECIAL, *ALPHABET, *("".join(merge.split()) for merge in MERGES)]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def tensors(family: str = "llama") -> dict[str, np.ndarray]:
    """Hugging Face name -> float32, of ``tiny_models``."""
    known = tiny_models.known(family)
    return tiny_models.weights(known["tensors"], known["config"]["model_type"])


def write(
    path: Path,
    *,
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    values: Mapping[str, Any] = {},
    tokens: list[str] = TOKENS,
) -> Path:
    """Writes the tiny Llama.

    Args:
      kind: type of the matrices; only F32, Q8_0 and Q8_K, which is filled with zeros.
      values: further ones of the header; None removes one.
    """
    config = tiny_models.known("llama")["config"]
    writer = gguf.GGUFWriter(path, architecture)
    header: dict[str, Any] = {
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.dimension_count": config["head_dim"],
        f"{architecture}.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.chat_template": TEMPLATE,
        **values,
    }
    for key, value in header.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
    writer.add_token_merges(MERGES)
    for name, tensor in tensors().items():
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        if (key := heads.get(name.split(".")[-2])) is not None:
            halves = tensor.reshape(config[key], 2, -1, tensor.shape[1])
            tensor = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
        matrix = kind if tensor.ndim > 1 else gguf.GGMLQuantizationType.F32
        _add(writer, _name(name), tensor, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, tensor: np.ndarray, kind: Any) -> None:
    if kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, tensor)
        return
    if kind == gguf.GGMLQuantizationType.Q8_0:
        data = gguf.quants.quantize(tensor, kind)
    else:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.zeros((*tensor.shape[:-1], -(-tensor.shape[-1] // block) * size), np.uint8)
    writer.add_tensor(name, data, raw_dtype=kind)


def _name(name: str) -> str:
    parts = name.split(".")
    if parts[1] == "layers":
        return f"blk.{parts[2]}.{_NAMES['.'.join(parts[3:-1])]}.{parts[-1]}"
    return f"{_NAMES['.'.join(parts[:-1])]}.{parts[-1]}"
